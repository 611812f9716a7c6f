"""``deepspeed.runtime.zero.parameter_offload``, of zerobench."""

from zerobench.compat.parameter_offload import ParameterOffload as DeepSpeedZeRoOffload
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
