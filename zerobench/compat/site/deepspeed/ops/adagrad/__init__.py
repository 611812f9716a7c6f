"""``deepspeed.ops.adagrad``, of zerobench."""

from deepspeed.ops.adagrad import cpu_adagrad
from zerobench.compat.optim.optimizers import DeepSpeedCPUAdagrad
