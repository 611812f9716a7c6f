"""``deepspeed.moe.utils``, of zerobench."""

from zerobench.compat.moe import *
