"""Portion: the part of one unit that a rank owns, and the part that it steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.layout import Unit


@dataclass(frozen=True, eq=False)
class Portion:
    """One unit as this rank has it; stores are asked for units by their portions.

    ``own`` are the elements of the unit that this rank owns, ``unit.shard`` of them. ``extent`` are the elements over
    which the optimizer steps on this rank: its own, or the whole unit. ``sharded`` says that only owners keep the
    parameters, ``has_master_copy`` that the fp32 master is memory of its own, apart from the parameter.
    """

    unit: Unit
    own: slice
    extent: slice
    sharded: bool
    has_master_copy: bool
    dtype: torch.dtype  # of the parameters
    device: torch.device

    @property
    def elements(self) -> int:
        """The number of elements over which the optimizer steps on this rank."""
        return int(self.extent.stop - self.extent.start)

    def owned(self, values: Tensor) -> Tensor:
        """This rank's part of ``values``, which are those of the whole unit or that part already."""
        return values[self.own] if values.numel() == self.unit.padded else values

    def clear_padding(self, values: Tensor, start: int) -> None:
        """Zero the elements of ``values`` that belong to no parameter; ``values`` are the shard's from ``start`` on."""
        first = self.own.start + start
        for lo, hi in self.unit.padding(first, first + values.numel()):
            values[lo:hi].zero_()
