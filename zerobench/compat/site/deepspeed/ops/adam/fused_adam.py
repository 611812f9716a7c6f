"""``deepspeed.ops.adam.fused_adam``, of zerobench."""

from zerobench.compat.optimizers import FusedAdam
