"""The host memory that a load reads into, laid out as the states that the values become."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from zerobench.engine.checkpoint.matching import Want
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import MASTER, Range
from zerobench.engine.state.unit import UnitState


def memory_for(parts: Parts, wants: Collection[Want], others: Iterable[Range]) -> dict[Range, Tensor]:
    """New memory for each range that a load reads, 1-dimensional on the host.

    The ranges of a unit's master share one tensor over the unit's extent, and so do those of each of its optimizer
    states: a store in host memory can keep this tensor (see OptimizerStore.replace). If the load has only some of a
    state's values, or has them in another dtype, each range has its own tensor.

    Args:
        parts: the engine.
        wants: the ranges that become its states.
        others: further ranges.
    """
    sources = {want.into: want.source for want in wants}
    memory: dict[Range, Tensor] = {}
    for state in parts.states:
        for kind in (MASTER, *parts.optimizer.state_names) if state.unit.trainable else ():
            together = _together(state, kind, sources)
            if memory.keys().isdisjoint(together):
                memory |= together
    for each in [*sources.values(), *others]:
        if each not in memory:
            memory[each] = torch.empty(each.length, dtype=each.dtype)
    return memory


def _together(state: UnitState, kind: str, sources: Mapping[str, Range]) -> dict[Range, Tensor]:
    """The ranges of a state and their parts of one tensor; none if they cannot have one."""
    start, stop = state.extent.start, state.extent.stop
    pieces = list(state.unit.pieces(start, stop))
    found = [sources.get(f"{kind}.{slot.name}") for slot, _, _ in pieces]
    ranges = [each for each in found if each is not None and each.dtype == torch.float32]
    if len(ranges) < len(pieces):
        return {}
    whole = torch.empty(stop - start, dtype=torch.float32)
    for lo, hi in state.unit.padding(start, stop):
        whole[lo:hi].zero_()
    return {each: whole[lo - start : hi - start] for each, (_, lo, hi) in zip(ranges, pieces, strict=True)}
