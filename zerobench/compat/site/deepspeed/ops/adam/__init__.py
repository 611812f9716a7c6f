"""``deepspeed.ops.adam``, of zerobench."""

from deepspeed.ops.adam import cpu_adam, fused_adam
from zerobench.compat.optim.optimizers import DeepSpeedCPUAdam, FusedAdam
