"""``deepspeed.ops.adam``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPUAdam, FusedAdam
