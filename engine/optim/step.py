"""The optimizer step: grad norm and overflow check, update, all-gather of the updated parameters."""

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
class GradientCheck:
    """The grad norm and overflow check before a step, the same bits on all ranks."""

    norm: float  # of the mean gradient, before clipping
    overflow: bool  # a gradient on any rank is not finite
    active: list[bool]  # by trainable parameter: at least one leaf has a gradient for it


@dataclass(frozen=True)
class _Run:
    """Neighbouring elements of one unit's extent that share group and step count; padding between them included."""

    start: int
    stop: int
    group: int
    step: int


class Stepper:
    """Steps the optimizer over this rank's extents.

    Phase 1, ``check_gradients``: each rank sums the squares of its own gradient chunks; one all-gather carries these
    sums and the flags of the parameters that have a gradient. Every rank then folds all sums in the model's chunk
    order, so norm, overflow and clip factor have the same bits on all ranks and for every ownership.
    Phase 2, update: each rank updates its units by sub-groups, in the order in which the unit's store opens them. Each
    run of elements has the hyperparameters of its group.
    Phase 3, ``_all_gather_updated``: if parameters are whole but only owners step them, each unit is all-gathered as
    soon as it is updated, so that the all-gather overlaps with the next unit's update.
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

    def check_gradients(self, active: list[bool], leaves: int, scale: float) -> GradientCheck:
        """Agree on the norm, on overflow and on the active parameters. A collective.

        Args:
            active: this rank's flags, by trainable parameter.
            leaves: micro-batches in the step over all ranks.
            scale: the loss scale.
        """
        flags = torch.tensor(active, dtype=torch.uint8).to(self._device, non_blocking=True)
        mine = torch.cat([self._sums().view(torch.uint8), flags])
        everyone = torch.empty(self.ranks.world, mine.numel(), dtype=torch.uint8, device=mine.device)
        self.ranks.all_gather(everyone.view(-1), mine).wait()
        everyone = everyone.cpu()  # the only wait of a step for the device
        width = self.layout.owned_chunks * 8
        sums = everyone[:, :width].reshape(-1).view(torch.float64)[self._order]
        total = float(torch.cumsum(sums, 0)[-1]) if sums.numel() else 0.0
        found = everyone[:, width:].any(dim=0).tolist()
        return GradientCheck(
            math.sqrt(total) / (leaves * scale) if total >= 0 else math.nan, not math.isfinite(total), found
        )

    @property
    def _device(self) -> torch.device:
        return self.states[0].full.device if self.states else torch.device("cpu")

    def _sums(self) -> Tensor:
        """fp64 sums of squares of the chunks that this rank owns, in the order of units."""
        parts = [state.optimizer_store.sums(state.portion) for state in self.states]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=self._device)

    def step(self, check: GradientCheck, factor: float) -> None:
        """Update every active parameter with gradient * factor, and all-gather the result. A collective."""
        for slot in self.layout.trainable:
            self.steps[slot.index] += check.active[slot.index]
        leaving: list[Any] = []
        for state in self.states:
            runs = list(self._runs(state, check.active))
            for window in state.optimizer_store.update_slices(state.portion):
                self._step(window, runs, factor)
            leaving += self._all_gather_updated(state)
        for work in leaving:
            work.wait()

    def _all_gather_updated(self, state: UnitState) -> list[Any]:
        """All-gather the unit's parameters if only owners have stepped and every rank keeps the whole unit."""
        if state.extent != state.own or state.sharded or self.ranks.world == 1:
            return []
        return gather_shards(state.unit, state.full, state.parameter_store.load(), self.ranks, self.gather_bucket)

    def _runs(self, state: UnitState, active: list[bool]) -> Iterator[_Run]:
        """The active parameters in the extent, merged if neighbours are updated alike; from the extent's start."""
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
        """Update the window's part of each run; an element in no run keeps its master, which sets its parameter."""
        done = window.start
        for run in runs:
            lo, hi = max(run.start, window.start), min(run.stop, window.stop)
            if lo < hi:
                window.follow(done, lo)
                self._update(window.part(lo, hi), run, factor)
                done = hi
        window.follow(done, window.stop)

    def _update(self, part: UpdateSlice, run: _Run, factor: float) -> None:
        """Apply the formula to elements that are updated alike."""
        values = self.optimizer.values(run.group, run.step)
        self.optimizer.rule.update(part.master, part.gradient, part.optimizer, part.parameter, factor, values)


def clip_factor(norm: float, clip: float, leaves: int, scale: float) -> float:
    """The factor of a summed gradient: takes the mean over the leaves, undoes the loss scale, clips to ``clip``."""
    coefficient = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
    return coefficient / (leaves * scale)


def _group_of(layout: Layout, optimizer: ZeroOptimizer) -> list[int]:
    index = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [index[slot.parameter] for slot in layout.trainable]
