"""``deepspeed.ops.lion``, of zerobench."""

from zerobench.compat.refused import DeepSpeedCPULion, FusedLion
