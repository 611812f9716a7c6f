"""``deepspeed.runtime.zero``, of zerobench."""

from deepspeed.runtime.zero import partition_parameters
from zerobench.compat.zero import GatheredParameters, Init, register_external_parameter
