"""``deepspeed.profiling.flops_profiler``, of zerobench."""

from deepspeed.profiling.flops_profiler import profiler
from zerobench.compat.flops_profiler import FlopsProfiler, get_model_profile, number_to_string
