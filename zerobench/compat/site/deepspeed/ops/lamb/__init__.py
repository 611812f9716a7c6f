"""``deepspeed.ops.lamb``, of zerobench."""

from deepspeed.ops.lamb import fused_lamb
from zerobench.compat.refused import DeepSpeedCPULamb, FusedLamb
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
