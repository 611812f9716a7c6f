"""``deepspeed.ops.lion.cpu_lion``, of zerobench."""

from zerobench.compat.optim.optimizers import DeepSpeedCPULion
