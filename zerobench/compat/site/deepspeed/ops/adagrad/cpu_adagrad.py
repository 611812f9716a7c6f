"""``deepspeed.ops.adagrad.cpu_adagrad``, of zerobench."""

from zerobench.compat.optim.optimizers import DeepSpeedCPUAdagrad
