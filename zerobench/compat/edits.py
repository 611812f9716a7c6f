"""Edits: a caller's edits in place between steps, which the masters must follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from zerobench.engine import Engine
from zerobench.engine.inspect import keep_edits

_INTEGERS = {2: torch.int16, 4: torch.int32}


class Edits:
    """Keeps edits that are made outside GatheredParameters, such as ``p.data.clamp_()`` of a GAN.

    If a master is kept apart from its parameter, in 16 bits or by offload, the next step would undo them; a parameter
    that is its own master keeps them anyway. Every rank must make the same edit. A sharded parameter refuses it.

    Elements whose values are their rounded masters stay as they are, so that a change by the engine itself is no edit.

    Args:
        engine: has the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._states = [
            state
            for state in engine.states
            if state.unit.trainable and not state.sharded and state.portion.has_master_copy
        ]
        self._seen = self._sums()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around each step: at its boundary the masters of edited elements become the edited values."""
        boundary = self._engine.is_gradient_accumulation_boundary()
        for state, before, now in zip(self._states, self._seen, self._sums() if boundary else self._seen, strict=True):
            if before != now:
                keep_edits(slot.parameter for slot in state.unit.slots)
        yield
        if boundary:
            self._seen = self._sums()

    def _sums(self) -> list[int]:
        """The sum of the bits of each unit, as integers; the device is waited for once."""
        sums = [_sum(state.full) for state in self._states]
        found: list[int] = torch.stack(sums).tolist() if sums else []
        return found


def _sum(values: Tensor) -> Tensor:
    return values.detach().view(_INTEGERS[values.element_size()]).sum(dtype=torch.int64)
