"""``deepspeed.profiling.flops_profiler.profiler``, of zerobench."""

from zerobench.compat.flops_profiler import FlopsProfiler, get_model_profile, number_to_string
