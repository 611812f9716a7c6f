"""The collectives of ``deepspeed.comm``: torch's, with DeepSpeed's parameters in DeepSpeed's order."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from zerobench.compat.comm.comms_logger import comms_logger
from zerobench.engine.comm.collectives import Works


class ReduceOp(Enum):
    """DeepSpeed's operations; a collective takes these and torch's."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    AVG = 7
    UNUSED = 8


#: DeepSpeed's parameters by collective; those of its logger follow.
_PARAMETERS = {
    "all_gather": "tensor_list, tensor, group=None, async_op=False",
    "all_gather_into_tensor": "output_tensor, tensor, group=None, async_op=False",
    "all_gather_object": "object_list, obj, group=None",
    "all_reduce": "tensor, op=SUM, group=None, async_op=False",
    "all_reduce_coalesced": "tensors, op=SUM, group=None, async_op=False",
    "all_to_all": "output_tensor_list, input_tensor_list, group=None, async_op=False",
    "all_to_all_single": "output, tensor, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False",
    "barrier": "group=None, async_op=False, device_ids=None",
    "batch_isend_irecv": "p2p_op_list",
    "broadcast": "tensor, src, group=None, async_op=False",
    "broadcast_object_list": "object_list, src, group=None, device=None",
    "gather": "tensor, gather_list=None, dst=0, group=None, async_op=False",
    "inference_all_reduce": "tensor, op=SUM, group=None, async_op=False",
    "irecv": "tensor, src=None, group=None, tag=0",
    "isend": "tensor, dst, group=None, tag=0",
    "monitored_barrier": "group=None, timeout=None, wait_all_ranks=False",
    "recv": "tensor, src=None, group=None, tag=0",
    "reduce": "tensor, dst, op=SUM, group=None, async_op=False",
    "reduce_scatter": "output, input_list, op=SUM, group=None, async_op=False",
    "reduce_scatter_tensor": "output_tensor, tensor, op=SUM, group=None, async_op=False",
    "scatter": "tensor, scatter_list=None, src=0, group=None, async_op=False",
    "send": "tensor, dst, group=None, tag=0",
}
_OF_THE_LOGGER = "prof=False, log_name=None, debug=None"
_DEFAULTS: dict[str, Any] = {"None": None, "False": False, "0": 0, "SUM": ReduceOp.SUM}
#: By collective, torch's names of DeepSpeed's parameters.
_TORCH_NAMES = {
    "all_gather_into_tensor": {"tensor": "input_tensor"},
    "reduce_scatter_tensor": {"output_tensor": "output", "tensor": "input"},
    "all_to_all_single": {"tensor": "input"},
}
COLLECTIVES = frozenset(_PARAMETERS)


def signature(name: str) -> inspect.Signature:
    """DeepSpeed's parameters of a collective, and torch's own keywords."""
    text = f"{_PARAMETERS[name]}, {_OF_THE_LOGGER}"
    of_torch = inspect.Parameter("of_torch", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature([*map(_parameter, text.split(", ")), of_torch])


def _parameter(text: str) -> inspect.Parameter:
    name, _, default = text.partition("=")
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=_DEFAULTS[default] if default else inspect.Parameter.empty)


@functools.cache
def collective(name: str) -> Callable[..., Any]:
    """A collective with DeepSpeed's parameters; its logger records the call under ``log_name``.

    Args:
        name: one of ``COLLECTIVES``.
    """
    function = dist.all_reduce if name == "inference_all_reduce" else getattr(dist, name)
    names, own = _TORCH_NAMES.get(name, {}), signature(name)

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        given = own.bind_partial(*args, **kwargs).arguments
        prof, log_name = given.pop("prof", False), given.pop("log_name", None)
        given.pop("debug", None)
        of_torch = given.pop("of_torch", {})
        if "op" in given:
            given["op"] = torch_op(given["op"])
        with comms_logger.recording(log_name, bool(prof)):
            return function(**{names.get(each, each): value for each, value in given.items()}, **of_torch)

    recorded.__name__, recorded.__dict__["__signature__"] = name, own
    return recorded


def torch_op(op: Any) -> Any:
    """Torch's operation for one of DeepSpeed's; any other as it is."""
    return getattr(dist.ReduceOp, op.name, op) if isinstance(op, ReduceOp) else op


def _of_torch(op: Any) -> Any:
    return {collective("isend"): dist.isend, collective("irecv"): dist.irecv}.get(op, op)


class P2POp(dist.P2POp):
    """A call of ``isend`` or ``irecv`` for ``batch_isend_irecv``."""

    def __new__(cls, op: Any, tensor: torch.Tensor, peer: int, group: Any = None, tag: int = 0) -> P2POp:
        """Check the call."""
        made: P2POp = super().__new__(cls, _of_torch(op), tensor, peer, group, tag)
        return made

    def __init__(self, op: Any, tensor: torch.Tensor, peer: int, group: Any = None, tag: int = 0) -> None:
        super().__init__(_of_torch(op), tensor, peer, group, tag)


def all_gather_coalesced(
    output_tensors: list[torch.Tensor], input_tensors: list[torch.Tensor], group: Any = None, async_op: bool = False
) -> Works | None:
    """Gather each input into its flat output; the calls overlap."""
    gather, both = dist.all_gather_into_tensor, zip(output_tensors, input_tensors, strict=True)
    with comms_logger.recording():
        works = Works([gather(output, given, group=group, async_op=True) for output, given in both])
        if not async_op:
            works.wait()
    return works if async_op else None
