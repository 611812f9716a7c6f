"""``deepspeed.runtime.zero.config``, of zerobench."""

from zerobench.compat.unoffered import names_of
from zerobench.compat.zero.status import ZeroStageEnum

__getattr__ = names_of(__name__)
