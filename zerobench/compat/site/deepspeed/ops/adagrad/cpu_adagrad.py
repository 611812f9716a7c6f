"""``deepspeed.ops.adagrad.cpu_adagrad``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPUAdagrad
