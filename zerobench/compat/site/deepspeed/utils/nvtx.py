"""``deepspeed.utils.nvtx``, of zerobench."""

from zerobench.compat.runtime.runtime_functions import noop_decorator as instrument_w_nvtx
