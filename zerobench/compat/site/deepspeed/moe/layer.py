"""``deepspeed.moe.layer``, of zerobench."""

from zerobench.compat.refused import MoE
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
