"""``deepspeed.ops.adagrad.cpu_adagrad``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPUAdagrad
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
