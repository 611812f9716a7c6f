"""Portion: the parts of one unit that a rank owns and steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.layout import Unit


@dataclass(frozen=True, eq=False)
class Portion:
    """One unit on this rank, and the key of the unit in stores.

    ``own`` are the ``unit.shard`` elements of the unit that this rank owns. ``extent`` are the elements that the
    optimizer steps on this rank: its own, or the whole unit. If ``sharded`` is set, only owners keep the parameters. If
    ``has_master_copy`` is set, the fp32 master has its own memory, apart from the parameter.
    """

    unit: Unit
    own: slice
    extent: slice
    sharded: bool
    has_master_copy: bool
    dtype: torch.dtype  # the dtype of the parameters
    device: torch.device

    @property
    def elements(self) -> int:
        """The number of elements that the optimizer steps on this rank."""
        return int(self.extent.stop - self.extent.start)

    def owned(self, values: Tensor) -> Tensor:
        """This rank's part of ``values``, which cover the whole unit or only this part."""
        return values[self.own] if values.numel() == self.unit.padded else values
