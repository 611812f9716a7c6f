"""``deepspeed.ops.adam.cpu_adam``, of zerobench."""

from zerobench.compat.optim.optimizers import DeepSpeedCPUAdam
