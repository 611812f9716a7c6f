"""``deepspeed.profiling``, of zerobench."""

from deepspeed.profiling import flops_profiler
