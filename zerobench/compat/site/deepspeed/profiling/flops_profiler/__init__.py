"""``deepspeed.profiling.flops_profiler``, of zerobench."""

from deepspeed.profiling.flops_profiler import profiler
from deepspeed.profiling.flops_profiler.profiler import *
