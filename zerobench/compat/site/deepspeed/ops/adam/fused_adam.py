"""``deepspeed.ops.adam.fused_adam``, of zerobench."""

from zerobench.compat.optimizers import FusedAdam
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
