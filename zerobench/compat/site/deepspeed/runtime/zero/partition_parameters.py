"""``deepspeed.runtime.zero.partition_parameters``, of zerobench."""

from typing import Any

import torch

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.zero import GatheredParameters, Init, ZeroParamStatus, register_external_parameter
from zerobench.compat.zero.init import restore_init_context, shutdown_init_context
from zerobench.compat.zero.status import is_zero_param

#: The shape of a parameter's data in DeepSpeed while it is sharded.
partitioned_param_data_shape = [0]
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return fn
