"""``deepspeed.ops.lion.fused_lion``, of zerobench."""

from zerobench.compat.optim.optimizers import FusedLion
