"""``deepspeed.ops.lion.cpu_lion``, of zerobench."""

from zerobench.compat.optimizers import DeepSpeedCPULion
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
