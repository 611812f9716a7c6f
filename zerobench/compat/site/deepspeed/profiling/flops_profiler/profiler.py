"""``deepspeed.profiling.flops_profiler.profiler``, of zerobench."""

from zerobench.compat.flops_profiler import FlopsProfiler, get_model_profile
from zerobench.compat.quantities import (
    bytes_to_string,
    duration_to_string,
    flops_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
