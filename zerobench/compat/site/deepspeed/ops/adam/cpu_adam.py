"""``deepspeed.ops.adam.cpu_adam``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPUAdam
