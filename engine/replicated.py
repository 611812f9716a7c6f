"""Replicated tensors: a model's buffers, and frozen parameters if every rank keeps them whole. They are in no unit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.state.partitioned import restore
from zerobench.engine.state.unit import UnitState


def take_over_replicated(
    module: nn.Module, states: Iterable[UnitState], ranks: Ranks, dtype: torch.dtype, device: torch.device
) -> None:
    """Move the tensors that are in no unit to ``device``, frozen weights in ``dtype``, with rank 0's values.

    A collective.
    """
    placed = {slot.parameter for state in states for slot in state.unit.slots}
    for parameter in module.parameters():
        if parameter not in placed:
            restore(parameter)
            parameter.grad = None
            kept = dtype if parameter.is_floating_point() else parameter.dtype
            parameter.data = same_values(parameter.data.to(device, kept), ranks)
    for buffer in module.buffers():
        buffer.data = same_values(buffer.data.to(device), ranks)


def same_values(tensor: Tensor, ranks: Ranks, source: int = 0) -> Tensor:
    """``tensor`` with the values of rank ``source``; a dense copy if it is expanded and so cannot be written to."""
    whole = tensor.contiguous()  # a collective moves memory in its order and ignores strides
    ranks.broadcast(whole, source)
    return whole if 0 in tensor.stride() else tensor.copy_(whole)
