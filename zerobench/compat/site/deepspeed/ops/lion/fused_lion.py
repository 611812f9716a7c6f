"""``deepspeed.ops.lion.fused_lion``, of zerobench."""

from zerobench.compat.optimizers import FusedLion
