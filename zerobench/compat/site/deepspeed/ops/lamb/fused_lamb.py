"""``deepspeed.ops.lamb.fused_lamb``, of zerobench."""

from zerobench.compat.refused import FusedLamb
