"""``deepspeed.moe.layer``, of zerobench."""

from zerobench.compat.refused import MoE
