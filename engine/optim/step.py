"""The optimizer step: what the ranks agree on, the update of each owned element, the spread of the new parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.layout import Layout
from zerobench.engine.optim.optimizer import ZeroOptimizer
from zerobench.engine.state.stores import UpdateSlice
from zerobench.engine.state.unit import UnitState


@dataclass(frozen=True)
class Vote:
    """What all ranks agree on before a step, the same bits on each of them."""

    norm: float  # of the mean gradient, before clipping
    overflow: bool  # a gradient somewhere is not finite
    active: list[bool]  # by trainable parameter: it received a gradient on some leaf


@dataclass(frozen=True)
class _Run:
    """Neighbouring elements of one unit's extent that share group and step count; padding between them included."""

    start: int
    stop: int
    group: int
    step: int


class Stepper:
    """Steps the optimizer over this rank's extents.

    Phase 1, vote: each rank sums the squares of its own gradient chunks; one all-gather carries these sums and the
    flags of the parameters that received a gradient. Every rank then folds all sums in the model's chunk order, so that
    norm, overflow and clip factor are the same bits everywhere, whoever owns what.
    Phase 2, update: unit by unit, sub-group by sub-group as the unit's place opens them, each run of elements with its
    group's hyperparameters.
    Phase 3, spread: where parameters are whole but only owners have stepped, an all-gather for each unit, started as
    soon as the unit is updated, so that it overlaps with the update of the next.
    """

    def __init__(
        self,
        states: list[UnitState],
        layout: Layout,
        ranks: Ranks,
        optimizer: ZeroOptimizer,
        *,
        gather_bucket: int,
    ) -> None:
        self.states = [state for state in states if state.unit.trainable]
        self.layout, self.ranks, self.optimizer = layout, ranks, optimizer
        self.gather_bucket = gather_bucket
        self.steps = [0] * len(layout.trainable)
        self._order = layout.chunk_order()
        self._group = _group_of(layout, optimizer)

    def vote(self, active: list[bool], leaves: int, scale: float) -> Vote:
        """Agree on the norm, on overflow and on which parameters were active. A collective.

        Args:
            active: this rank's flags, by trainable parameter.
            leaves: micro-batches in the step over all ranks.
            scale: the loss scale.
        """
        mine = torch.cat([self._sums().cpu().view(torch.uint8), torch.tensor(active, dtype=torch.uint8)])
        mine = mine.to(self._device)
        everyone = torch.empty(self.ranks.world, mine.numel(), dtype=torch.uint8, device=mine.device)
        self.ranks.all_gather(everyone.view(-1), mine).wait()
        everyone = everyone.cpu()
        width = self.layout.owned_chunks * 8
        sums = everyone[:, :width].reshape(-1).view(torch.float64)[self._order]
        total = float(torch.cumsum(sums, 0)[-1]) if sums.numel() else 0.0
        flags = everyone[:, width:].any(dim=0).tolist()
        return Vote(math.sqrt(total) / (leaves * scale) if total >= 0 else math.nan, not math.isfinite(total), flags)

    @property
    def _device(self) -> torch.device:
        return self.states[0].full.device if self.states else torch.device("cpu")

    def _sums(self) -> Tensor:
        """fp64 sums of squares of the chunks this rank owns, in the order of units."""
        parts = [state.optimizer_store.sums(state.portion) for state in self.states]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)

    def step(self, vote: Vote, factor: float) -> None:
        """Update every parameter that was active, with gradient * factor, and spread the result. A collective."""
        for slot in self.layout.trainable:
            self.steps[slot.index] += vote.active[slot.index]
        leaving: list[Any] = []
        for state in self.states:
            runs = list(self._runs(state, vote.active))
            for window in state.optimizer_store.update_slices(state.portion):
                self._step(window, runs, factor)
            leaving += self._spread(state)
        for work in leaving:
            work.wait()

    def _spread(self, state: UnitState) -> list[Any]:
        """Where only owners stepped and every rank keeps the whole unit, it needs the other owners' parameters."""
        if state.extent != state.own or state.sharded or self.ranks.world == 1:
            return []
        return gather_shards(state.unit, state.full, state.parameter_store.load(), self.ranks, self.gather_bucket)

    def _runs(self, state: UnitState, active: list[bool]) -> Iterator[_Run]:
        """The active parameters in the extent, merged where neighbours are updated alike; from the extent's start."""
        current: _Run | None = None
        for slot, lo, hi in state.unit.pieces(state.extent.start, state.extent.stop):
            if not active[slot.index]:
                if current:
                    yield current
                current = None
                continue
            start, stop = lo - state.extent.start, hi - state.extent.start
            group, step = self._group[slot.index], self.steps[slot.index]
            if current and (current.group, current.step) == (group, step):
                current = _Run(current.start, stop, group, step)
            else:
                if current:
                    yield current
                current = _Run(start, stop, group, step)
        if current:
            yield current

    def _step(self, window: UpdateSlice, runs: list[_Run], factor: float) -> None:
        """Update the window's part of each run; what is in no run stays, and its parameter follows its master."""
        done = window.start
        for run in runs:
            lo, hi = max(run.start, window.start), min(run.stop, window.stop)
            if lo < hi:
                window.follow(done, lo)
                self._update(window.part(lo, hi), run, factor)
                done = hi
        window.follow(done, window.stop)

    def _update(self, part: UpdateSlice, run: _Run, factor: float) -> None:
        """The formula on a window whose elements are updated alike."""
        values = self.optimizer.values(run.group, run.step)
        self.optimizer.rule.update(part.master, part.gradient, part.optimizer, part.parameter, factor, values)


def clip_factor(norm: float, clip: float, leaves: int, scale: float) -> float:
    """What a summed gradient is multiplied by: the mean over the leaves, the loss scale undone, clipped to ``clip``."""
    coefficient = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    return coefficient / (leaves * scale)


def _group_of(layout: Layout, optimizer: ZeroOptimizer) -> list[int]:
    index = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [index[slot.parameter] for slot in layout.trainable]
