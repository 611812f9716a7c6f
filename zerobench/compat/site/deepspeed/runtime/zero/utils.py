"""``deepspeed.runtime.zero.utils``, of zerobench."""

from zerobench.compat.zero.status import is_zero_param
