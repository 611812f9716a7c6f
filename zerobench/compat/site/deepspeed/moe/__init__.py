"""``deepspeed.moe``, of zerobench."""

from deepspeed.moe import layer, utils
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
