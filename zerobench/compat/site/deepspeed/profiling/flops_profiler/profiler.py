"""``deepspeed.profiling.flops_profiler.profiler``, of zerobench."""

from zerobench.compat.profiling.flops_profiler import FlopsProfiler, get_model_profile
from zerobench.compat.profiling.quantities import *
