"""ReadCache: whole units of sharded states, gathered for reading."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.state.unit import UnitState


class ReadCache:
    """The units gathered last: of each kind of state one run of neighbouring units, by one all-gather.

    Reading all parameters in the model's order so takes few collectives. The engine clears the cache with every call
    that moves a state; each rank does, so either all ranks gather again or none.

    Args:
        states: all units.
        ranks: all that share the states.
        ahead: elements that one gather may bring, the unit asked for included.
    """

    def __init__(self, states: Sequence[UnitState], ranks: Ranks, ahead: int) -> None:
        self._trained = [state for state in states if state.unit.trainable]
        self._ranks, self._ahead = ranks, ahead
        self.clear()

    def clear(self) -> None:
        """A state moves: forget everything."""
        self._active: list[bool] | None = None
        self._wholes: dict[str, dict[UnitState, Tensor]] = {}

    def active(self, own: list[bool], device: torch.device) -> list[bool]:
        """By trainable parameter, whether it received a gradient on any rank; ``own`` are this rank's flags."""
        if self._active is None:
            self._active = self._ranks.anywhere(own, device)
        return self._active

    def whole(self, state: UnitState, kind: str) -> Tensor:
        """The whole unit of a state that is kept over the shard, which nobody writes to; ``kind`` is its name."""
        if state not in self._wholes.get(kind, {}):
            self._wholes[kind] = self._gathered(self._with_the_next(state), kind)
        return self._wholes[kind][state]

    def _with_the_next(self, state: UnitState) -> list[UnitState]:
        """The unit and those after it, as many as ``ahead`` elements allow."""
        room = self._ahead - state.unit.padded
        chosen = [state]
        for each in self._trained[self._trained.index(state) + 1 :]:
            room -= each.unit.padded
            if room < 0:
                break
            chosen.append(each)
        return chosen

    def _gathered(self, states: list[UnitState], kind: str) -> dict[UnitState, Tensor]:
        own = torch.cat([state.optimizer_store.read(state.portion, kind, 0, state.unit.shard) for state in states])
        everyone = torch.empty(self._ranks.world, own.numel(), dtype=own.dtype, device=own.device)
        self._ranks.all_gather(everyone.view(-1), own).wait()
        shards = torch.split(everyone, [state.unit.shard for state in states], dim=1)
        return {state: shard.reshape(-1) for state, shard in zip(states, shards, strict=True)}
