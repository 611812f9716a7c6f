"""``deepspeed.utils.nvtx``, of zerobench."""

from zerobench.compat.runtime_functions import noop_decorator as instrument_w_nvtx
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
