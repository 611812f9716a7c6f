"""``deepspeed.ops.lion.cpu_lion``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPULion
