"""``deepspeed.profiling``, of zerobench."""

from deepspeed.profiling import flops_profiler
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
