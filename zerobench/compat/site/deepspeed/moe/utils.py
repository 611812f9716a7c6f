"""``deepspeed.moe.utils``, of zerobench."""

from zerobench.compat.runtime.moe import *
