"""A model passes from one engine to the next one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.engine import Engine
from zerobench.engine.registry import engines_of
from zerobench.engine.state.partitioned import partition
from zerobench.engine.state.unit import UnitState


def hand_over(parameters: Iterable[nn.Parameter]) -> None:
    """Destroy the engines that shard these parameters, and leave theirs partitioned, as at construction; a collective.

    The next engine takes them over shard by shard, so no rank has more than one unit whole.
    """
    engines: list[Engine] = engines_of(parameters)
    for engine in engines:
        sharded = [state for state in engine.states if state.sharded]
        for state in sharded:
            _partition(state, engine.ranks)
        if sharded:
            engine.destroy()


def _partition(state: UnitState, ranks: Ranks) -> None:
    whole = torch.empty(state.unit.padded, dtype=state.dtype, device=state.full.device)
    ranks.all_gather(whole, state.parameter_store.load()).wait()
    state.forget()
    for slot in state.unit.slots:
        slot.parameter.data = slot.view(whole).clone()
        partition(slot.name, slot.parameter, ranks)
