"""``deepspeed.ops.lamb``, of zerobench."""

from deepspeed.ops.lamb import fused_lamb
from zerobench.compat.refused import DeepSpeedCPULamb, FusedLamb
