"""Replicated tensors: a model's buffers, and frozen parameters if every rank keeps them whole. They are in no unit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.state.partitioned import restore
from zerobench.engine.state.unit import UnitState


def take_over_replicated(
    module: nn.Module, states: Iterable[UnitState], ranks: Ranks, dtype: torch.dtype, device: torch.device
) -> None:
    """Move the tensors that are in no unit to ``device``, frozen weights in ``dtype``, with rank 0's values.

    Buffers keep their dtype, except for the running statistics of a batch norm or an instance norm with parameters:
    torch's kernels want one dtype for all four. A collective.
    """
    placed = {slot.parameter for state in states for slot in state.unit.slots}
    for parameter in module.parameters():
        if parameter not in placed:
            restore(parameter)
            parameter.grad = None
            kept = dtype if parameter.is_floating_point() else parameter.dtype
            parameter.data = same_values(parameter.data.to(device, kept), ranks)
    statistics = _running_statistics(module)
    for buffer in module.buffers():
        kept = dtype if buffer in statistics else buffer.dtype
        buffer.data = same_values(buffer.data.to(device, kept), ranks)


def _running_statistics(module: nn.Module) -> set[Tensor]:
    """The means and variances that norms with parameters keep."""
    norms = (each for each in module.modules() if isinstance(each, _NormBase) and each.affine)
    kept = (buffer for norm in norms for buffer in (norm.running_mean, norm.running_var))
    return {buffer for buffer in kept if buffer is not None}


def same_values(tensor: Tensor, ranks: Ranks, source: int = 0) -> Tensor:
    """``tensor`` with the values of rank ``source``; a dense copy if it is expanded and so cannot be written to."""
    whole = tensor.contiguous()  # a collective moves memory in its order and ignores strides
    ranks.broadcast(whole, source)
    return whole if 0 in tensor.stride() else tensor.copy_(whole)
