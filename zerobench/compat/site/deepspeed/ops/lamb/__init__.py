"""``deepspeed.ops.lamb``, of zerobench."""

from zerobench.compat.refused import DeepSpeedCPULamb, FusedLamb
