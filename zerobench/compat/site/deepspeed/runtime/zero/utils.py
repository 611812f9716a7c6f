"""``deepspeed.runtime.zero.utils``, of zerobench."""

from zerobench.compat.unoffered import names_of
from zerobench.compat.zero.status import is_zero_param

__getattr__ = names_of(__name__)
