"""Edits: a caller's edits in place between steps, which the masters must follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from zerobench.engine import Engine
from zerobench.engine.inspect import keep_edits
from zerobench.engine.state.unit import UnitState

_INTEGERS = {2: torch.int16, 4: torch.int32}

#: A prime, so that rows of a weight that change places come into other columns.
_COLUMNS = 4093


class Edits:
    """Keeps edits that are made outside GatheredParameters, such as ``p.data.clamp_()`` of a GAN.

    If a master is kept apart from its parameter, in 16 bits or by offload, the next step would undo them; a parameter
    that is its own master keeps them anyway. Every rank must make the same edit. A sharded parameter refuses it while
    it is not whole; within a forward the engine notes it.

    An edit is seen by sums of a unit's bits, one sum over every 4,093rd element. Elements whose values are their
    rounded masters stay as they are, so that a change by the engine itself is no edit.

    Args:
        engine: has the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        copied = [state for state in engine.states if state.unit.trainable and state.portion.has_master_copy]
        self._states = [state for state in copied if not state.sharded]
        self._sharded = [state for state in copied if state.sharded]
        self._seen = self._sums()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around each step: at its boundary the masters of edited elements become the edited values."""
        boundary = self._engine.is_gradient_accumulation_boundary()
        if boundary:
            self.keep()
        yield
        if boundary:
            self._seen = self._sums()

    def keep(self) -> None:
        """Make the masters of edited elements the edited values now, as before a checkpoint."""
        for state in self._edited():
            keep_edits(slot.parameter for slot in state.unit.slots)
        for state in self._sharded:
            state.keep_masters()

    def _edited(self) -> list[UnitState]:
        """The units whose bits have changed since the last step; the device is waited for once."""
        if not self._states:
            return []
        changed = [(before != now).any() for before, now in zip(self._seen, self._sums(), strict=True)]
        return [state for state, edited in zip(self._states, torch.stack(changed).tolist(), strict=True) if edited]

    def _sums(self) -> list[Tensor]:
        return [_column_sums(state.full) for state in self._states]


def _column_sums(values: Tensor) -> Tensor:
    """The sums of the bits of every _COLUMNS-th element, as integers that wrap around; [_COLUMNS]."""
    bits = values.detach().view(_INTEGERS[values.element_size()])
    rows, rest = divmod(bits.numel(), _COLUMNS)
    whole = rows * _COLUMNS
    sums = bits[:whole].view(rows, _COLUMNS).sum(0, dtype=bits.dtype)
    sums[:rest] += bits[whole:]
    return sums
