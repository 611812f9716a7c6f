"""``deepspeed.ops.lion.fused_lion``, of zerobench."""

from zerobench.compat.optimizers import FusedLion
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
