"""``deepspeed.ops.adam.fused_adam``, of zerobench."""

from zerobench.compat.optim.optimizers import FusedAdam
