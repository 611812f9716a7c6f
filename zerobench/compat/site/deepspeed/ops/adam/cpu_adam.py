"""``deepspeed.ops.adam.cpu_adam``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPUAdam
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
