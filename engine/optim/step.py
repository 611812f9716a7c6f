"""The optimizer step: grad norm and overflow check, update, all-gather of the updated parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.shards import InFlight
from zerobench.engine.layout import Layout
from zerobench.engine.ops.runs import Run
from zerobench.engine.ops.tree import tree_sum
from zerobench.engine.optim.check import GradientCheck
from zerobench.engine.optim.optimizer import ZeroOptimizer
from zerobench.engine.optim.outcomes import Outcomes
from zerobench.engine.state.stores import UpdateSlice
from zerobench.engine.state.unit import UnitState


@dataclass
class _Run:
    """Neighbouring elements of one unit's extent that share group and step count; padding between them included."""

    start: int
    stop: int
    group: int
    parameter: int  # the first trainable parameter; the others have its factor and its number of updates


class Stepper:
    """Steps the optimizer over this rank's extents.

    Phase 1, ``check_gradients``: each rank sums the squares of its own gradient chunks; one all-gather carries these
    sums and the flags of the parameters that have a gradient. The device of every rank then adds all sums by halving,
    in the model's chunk order, so norm, overflow and clip factor have the same bits on all ranks and for every
    ownership. The host does not wait for them.
    Phase 2, update: each rank updates its units by sub-groups, in the order in which the unit's store opens them. Each
    run of elements has the hyperparameters of its group. Its factor is in the device's memory, and forbids the update
    if the step is skipped, or if no rank has a gradient of the parameter.
    Phase 3, ``_all_gather_updated``: if parameters are whole but only owners step them, each unit is all-gathered as
    soon as it is updated, so that the all-gather overlaps with the next unit's update.
    """

    def __init__(
        self,
        states: list[UnitState],
        layout: Layout,
        ranks: Ranks,
        optimizer: ZeroOptimizer,
        outcomes: Outcomes,
        *,
        gather_bucket: int,
    ) -> None:
        self.states = [state for state in states if state.unit.trainable]
        self.layout, self.ranks, self.optimizer = layout, ranks, optimizer
        self.outcomes, self.gather_bucket = outcomes, gather_bucket
        self._order = layout.chunk_order().to(self._device)
        self._group = _group_of(layout, optimizer)
        self._cut: tuple[Any, list[list[_Run]]] | None = None  # the runs of the last step, and what they depend on

    @property
    def steps(self) -> list[int]:
        """By trainable parameter, the number of its updates."""
        return self.outcomes.steps

    @steps.setter
    def steps(self, steps: list[int]) -> None:
        self.outcomes.steps = steps

    def check_gradients(self, active: list[bool], divisor: float) -> GradientCheck:
        """Agree on the norm, on overflow and on the active parameters. A collective.

        Args:
            active: this rank's flags, by trainable parameter.
            divisor: micro-batches in the step over all ranks, times the loss scale.
        """
        mine = torch.cat([self._sums().view(torch.uint8), self._flags(active)])
        everyone = torch.empty(self.ranks.world, mine.numel(), dtype=torch.uint8, device=mine.device)
        self.ranks.all_gather(everyone.view(-1), mine).wait()
        width = self.layout.owned_chunks * 8
        sums = everyone[:, :width].reshape(-1).view(torch.float64)
        total = tree_sum(sums.index_select(0, self._order))
        return GradientCheck(total, ~total.isfinite(), everyone[:, width:].bool().any(dim=0), active, divisor)

    def _flags(self, active: list[bool]) -> Tensor:
        """The flags on the device, [trainable parameters] in bytes."""
        pinned = self._device.type == "cuda"  # otherwise the copy would make the host wait
        return torch.tensor(active, dtype=torch.uint8, pin_memory=pinned).to(self._device, non_blocking=True)

    @property
    def _device(self) -> torch.device:
        return self.states[0].full.device if self.states else torch.device("cpu")

    def _sums(self) -> Tensor:
        """fp64 sums of squares of the chunks that this rank owns, in the order of units."""
        parts = [state.optimizer_store.sums(state.portion) for state in self.states]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=self._device)

    def step(self, check: GradientCheck, factors: Tensor) -> None:
        """Update every active parameter with its gradient times its factor, and all-gather the result. A collective.

        Args:
            check: the check of this step; the outcome of the step before it is settled first.
            factors: [trainable parameters], fp32, on the device; NaN forbids the update.
        """
        gathers = InFlight()
        for state, runs in zip(self.states, self._all_runs(check.mine), strict=True):
            for window in state.optimizer_store.update_slices(state.portion):
                if window.master.device != factors.device:
                    factors = factors.to(window.master.device)  # offload waits for the gradients too
                self._step(window, runs, factors)
            gathers.add(self._all_gather_updated(state))
        gathers.finish()

    def _all_gather_updated(self, state: UnitState) -> list[Any]:
        return state.gather_own(self.ranks, self.gather_bucket)

    def _all_runs(self, active: list[bool]) -> list[list[_Run]]:
        """The runs of each unit; they seldom change from step to step."""
        steps = self.steps
        key = tuple(active), tuple([count - steps[0] for count in steps])
        if self._cut is None or self._cut[0] != key:
            self._cut = key, [self._runs(state, active) for state in self.states]
        return self._cut[1]

    def _runs(self, state: UnitState, active: list[bool]) -> list[_Run]:
        """The parameters in the extent, merged if neighbours are updated alike; from the extent's start.

        If this rank has no gradient of a parameter, only the device knows if others do. It is then a run of its own.
        """
        runs: list[_Run] = []
        begin, steps = state.extent.start, self.steps
        for slot, start, stop in state.unit.pieces(begin, state.extent.stop):
            group, last = self._group[slot.index], runs[-1] if runs else None
            alike = last and last.group == group and steps[last.parameter] == steps[slot.index]
            if last and alike and active[last.parameter] and active[slot.index]:
                last.stop = stop - begin
            else:
                runs.append(_Run(start - begin, stop - begin, group, slot.index))
        return runs

    def _step(self, window: UpdateSlice, runs: list[_Run], factors: Tensor) -> None:
        """Update the window's part of each run; an element in no run keeps its master, which sets its parameter."""
        done, inside, steps = window.start, [], self.steps
        for run in runs:
            lo, hi = max(run.start, window.start), min(run.stop, window.stop)
            if lo < hi:
                window.follow(done, lo)
                values = self.optimizer.values(run.group, steps[run.parameter] + 1)
                inside.append(Run(lo - window.start, hi - window.start, run.parameter, values))
                done = hi
        self._update(window, inside, factors)
        window.follow(done, window.stop)

    def _update(self, window: UpdateSlice, runs: list[Run[Any]], factors: Tensor) -> None:
        """Apply the formula to each run."""
        rule = self.optimizer.rule
        rule.update_runs(window.master, window.gradient, window.optimizer, window.parameter, factors, runs)


def _group_of(layout: Layout, optimizer: ZeroOptimizer) -> list[int]:
    index = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    return [index[slot.parameter] for slot in layout.trainable]
