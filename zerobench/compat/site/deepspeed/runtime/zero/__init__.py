"""``deepspeed.runtime.zero``, of zerobench."""

from deepspeed.runtime.zero import config, partition_parameters, stage3, stage_1_and_2
from zerobench.compat.zero import GatheredParameters, Init, register_external_parameter
