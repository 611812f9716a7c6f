"""``deepspeed.utils.module_utils``, of zerobench."""

from zerobench.compat.runtime.runtime_functions import recursive_getattr, recursive_setattr
