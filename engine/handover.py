"""A model passes from one engine to the next one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.engine import Engine
from zerobench.engine.registry import engine_of, has_engine
from zerobench.engine.state.partitioned import partition
from zerobench.engine.state.unit import UnitState


def hand_over(parameters: Iterable[nn.Parameter]) -> None:
    """Destroy the engines that shard these parameters, and leave theirs partitioned, as at construction; a collective.

    The next engine takes them over shard by shard, so no rank has more than one unit whole.
    """
    engines: dict[int, Engine] = {id(e): e for e in (engine_of(p) for p in parameters if has_engine(p))}
    for engine in engines.values():
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
