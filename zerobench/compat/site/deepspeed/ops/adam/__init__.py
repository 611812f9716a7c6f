"""``deepspeed.ops.adam``, of zerobench."""

from deepspeed.ops.adam import cpu_adam, fused_adam
from zerobench.compat.optimizers import DeepSpeedCPUAdam, FusedAdam
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
