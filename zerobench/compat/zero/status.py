"""The attributes by which callers recognise a parameter of stage 3: ``ds_id``, ``ds_status``, its shape and size."""

from __future__ import annotations

import functools
import itertools
from enum import Enum, IntEnum, StrEnum
from typing import Any

import torch.distributed as dist
from torch import Tensor

from zerobench.engine.state.resharded import Resharded

_ids = itertools.count()


class ZeroParamStatus(Enum):
    """Whether a parameter is whole here."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class ZeroStageEnum(IntEnum):
    """The stages by their names."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


class OffloadDeviceEnum(StrEnum):
    """The media of offload by their names."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(StrEnum):
    """The states that ``offload_states()`` can name."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


# The class of a parameter that is not whole has this property, which hides the attribute of the parameter itself.
setattr(Resharded, "ds_status", property(lambda _: ZeroParamStatus.NOT_AVAILABLE))  # noqa: B010  # see above
# Every other tensor is whole. The backward of a function in Python asks the tensor that autograd saved for a parameter.
setattr(Tensor, "ds_status", ZeroParamStatus.AVAILABLE)  # noqa: B010  # torch declares no such attribute


def mark(parameter: Any) -> None:
    """Give a parameter DeepSpeed's attributes; one that has them keeps them."""
    if not hasattr(parameter, "ds_id"):
        parameter.ds_id = next(_ids)
        parameter.ds_shape, parameter.ds_numel = parameter.shape, parameter.numel()
        parameter.partition_numel = functools.partial(_partition_numel, parameter.numel())
        parameter.ds_active_sub_modules = set()  # no module holds it: the engine has its own record
        vars(parameter)["ds_status"] = ZeroParamStatus.AVAILABLE  # past the property


def _partition_numel(size: int) -> int:
    """The elements of a rank's part of a parameter, rounded up, as DeepSpeed cuts it."""
    return -(-size // (dist.get_world_size() if dist.is_initialized() else 1))


def is_zero_param(parameter: object) -> bool:
    """Whether it is a parameter of stage 3."""
    return isinstance(parameter, Tensor) and hasattr(parameter, "ds_id")
