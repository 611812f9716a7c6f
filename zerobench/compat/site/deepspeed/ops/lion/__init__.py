"""``deepspeed.ops.lion``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPULion, FusedLion
