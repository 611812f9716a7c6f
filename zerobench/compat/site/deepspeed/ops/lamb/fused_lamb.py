"""``deepspeed.ops.lamb.fused_lamb``, of zerobench."""

from zerobench.compat.refused import FusedLamb
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
