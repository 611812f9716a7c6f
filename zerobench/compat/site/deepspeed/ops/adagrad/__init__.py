"""``deepspeed.ops.adagrad``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPUAdagrad
