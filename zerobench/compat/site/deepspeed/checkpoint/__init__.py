"""``deepspeed.checkpoint``, of zerobench."""

from deepspeed.checkpoint import utils
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
