"""``deepspeed.utils.nvtx``, of zerobench."""

from zerobench.compat.runtime_functions import noop_decorator as instrument_w_nvtx
