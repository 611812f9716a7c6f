"""``deepspeed.ops.lion``, of zerobench."""

from deepspeed.ops.lion import cpu_lion, fused_lion
from zerobench.compat.optim.optimizers import DeepSpeedCPULion, FusedLion
