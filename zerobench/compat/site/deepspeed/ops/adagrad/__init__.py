"""``deepspeed.ops.adagrad``, of zerobench."""

from deepspeed.ops.adagrad import cpu_adagrad
from zerobench.compat.optimizers import DeepSpeedCPUAdagrad
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
