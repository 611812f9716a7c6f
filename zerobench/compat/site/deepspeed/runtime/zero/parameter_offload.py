"""``deepspeed.runtime.zero.parameter_offload``, of zerobench."""

from zerobench.compat.engine.parameter_offload import ParameterOffload as DeepSpeedZeRoOffload
