"""``deepspeed.runtime.utils``, of zerobench."""

from zerobench.compat.memory import see_memory_usage
