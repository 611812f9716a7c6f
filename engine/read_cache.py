"""ReadCache: sharded states gathered into whole units for reading."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.state.unit import UnitState


class ReadCache:
    """The units gathered last: for each kind of state one run of neighbouring units, from one all-gather.

    So reading all parameters in the model's order takes few collectives. Every engine call that changes a state clears
    the cache on all ranks, or replaces what it has changed, so either all ranks gather again or none does.

    Args:
        states: all units.
        ranks: all ranks that share the states.
        ahead: the maximum number of elements of one gather, including the requested unit.
    """

    def __init__(self, states: Sequence[UnitState], ranks: Ranks, ahead: int) -> None:
        self._trained = [state for state in states if state.unit.trainable]
        self._ranks, self._ahead = ranks, ahead
        self.clear()

    def clear(self) -> None:
        """Drop all units, because a state changes."""
        self._active: list[bool] | None = None
        self._wholes: dict[str, dict[UnitState, Tensor]] = {}

    def follow_edits(self) -> None:
        """Make the masters follow the edits of GatheredParameters since the last call; every rank calls it."""
        for state in self._trained:
            if state.keep_written():
                self.clear()

    def replace(self, state: UnitState, kind: str, start: int, values: Tensor) -> None:
        """Take what a caller has set on all ranks: the unit's elements from ``start`` on, rounded as the state is.

        So a client that reads and sets one parameter after another gathers each unit once.
        """
        if (whole := self._wholes.get(kind, {}).get(state)) is not None:
            whole[start : start + values.numel()].copy_(values)

    def active(self, own: list[bool], device: torch.device) -> list[bool]:
        """For each trainable parameter, whether any rank has a gradient; ``own`` has this rank's flags."""
        if self._active is None:
            self._active = self._ranks.anywhere(own, device)
        return self._active

    def whole(self, state: UnitState, kind: str) -> Tensor:
        """The whole unit of the state ``kind``, of which ranks keep shards; callers must not write to it."""
        if state not in self._wholes.get(kind, {}):
            self._wholes[kind] = self._gathered(self._with_the_next(state), kind)
        return self._wholes[kind][state]

    def _with_the_next(self, state: UnitState) -> list[UnitState]:
        """The unit and the units after it, up to ``ahead`` elements."""
        room = self._ahead - state.unit.padded
        chosen = [state]
        for each in self._trained[self._trained.index(state) + 1 :]:
            room -= each.unit.padded
            if room < 0:
                break
            chosen.append(each)
        return chosen

    def _gathered(self, states: list[UnitState], kind: str) -> dict[UnitState, Tensor]:
        own = torch.cat([state.read(kind, 0, state.unit.shard) for state in states])
        everyone = torch.empty(self._ranks.world, own.numel(), dtype=own.dtype, device=own.device)
        self._ranks.all_gather(everyone.view(-1), own).wait()
        shards = torch.split(everyone, [state.unit.shard for state in states], dim=1)
        return {state: shard.reshape(-1) for state, shard in zip(states, shards, strict=True)}
