"""``deepspeed.runtime.zero``, of zerobench."""

from deepspeed.runtime.zero import (
    config,
    offload_config,
    parameter_offload,
    partition_parameters,
    stage3,
    stage_1_and_2,
    tiling,
    utils,
)
from zerobench.compat.zero import *
