"""``deepspeed.runtime.zero.offload_config``, of zerobench."""

from zerobench.compat.unoffered import names_of
from zerobench.compat.zero.status import OffloadDeviceEnum

__getattr__ = names_of(__name__)
