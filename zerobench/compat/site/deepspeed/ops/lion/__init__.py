"""``deepspeed.ops.lion``, of zerobench."""

from deepspeed.ops.lion import cpu_lion, fused_lion
from zerobench.compat.optimizers import DeepSpeedCPULion, FusedLion
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
