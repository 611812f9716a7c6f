"""Engines that are wrong in one way each, and one that is right but slow.

Each is the reference engine with a small patch, named after its bug. ``points_at`` holds the places at which the bug
shows first, and the suite's failure must name one of them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine import gradients
from zerobench.engine.engine import Engine
from zerobench.engine.ops.folding import fold
from zerobench.engine.optim.check import GradientCheck
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.subjects.reference import Reference
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.points import Points
from zerobench.suites.support.padding import NanPadding


class Mutant(Reference):
    """The reference engine, sabotaged after it is built."""

    points_at: ClassVar[Points | tuple[Points, ...]]

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.group = group
        self.sabotage()

    def sabotage(self) -> None:
        """Break this engine."""

    def patch_check(self, change: Any) -> None:
        """Let ``change(check)`` replace the ranks' common decision."""
        original = self.engine.stepper.check_gradients
        self.engine.stepper.check_gradients = lambda *args: change(original(*args))  # type: ignore[method-assign]

    def patch_leaves(self, change: Any) -> None:
        """Let ``change(leaves)`` be the engine's number of leaves."""
        leaves = property(lambda engine: change(engine.ranks.world * engine.gradient_accumulation_steps))
        self.engine.__class__ = type("Sabotaged", (Engine,), {"leaves": leaves})

    def edit_masters(self, edit: Callable[[Tensor], object]) -> None:
        """Let ``edit`` change this rank's master weights in place."""
        for state in self.engine.states:
            if state.unit.trainable:
                with state.optimizer_store.edit_master(state.portion, 0, state.portion.elements) as master:
                    edit(master)

    def rates(self) -> list[float]:
        """The learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rate of each group."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def scale_rates(self, factor: float) -> None:
        """Multiply every learning rate."""
        self.set_rates([rate * factor for rate in self.rates()])

    def patch_fold(self, change: Any) -> None:
        """Let ``change`` replace the fold on this engine's gradients."""
        drain = self.engine.reducer._drain

        def sabotaged(allowed: int) -> None:
            with mock.patch("zerobench.engine.gradients.fold", change):
                drain(allowed)

        self.engine.reducer._drain = sabotaged  # type: ignore[method-assign]


class ForgetsToAverage(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: 1)


class AveragesTwice(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: leaves * leaves)


class AveragesOverRanksOnly(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: self.engine.ranks.world)


class DropsTheTailBucket(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        reducer = self.engine.reducer
        drain = reducer._drain

        def without_tail(allowed: int) -> None:
            for bucket in reducer._flying:
                if bucket.stop == bucket.state.unit.shard:
                    bucket.work.wait()
                    bucket.received.zero_()
            drain(allowed)

        reducer._drain = without_tail  # type: ignore[method-assign]


class NeverReduces(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        def only_mine(accumulator: Tensor, contributions: Tensor, *, first: bool) -> None:
            mine = contributions[self.engine.ranks.rank : self.engine.ranks.rank + 1]
            fold(accumulator, mine.expand_as(contributions), first=first)

        self.patch_fold(only_mine)


class DropsTheLastRank(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        self.patch_fold(lambda acc, rows, *, first: fold(acc, rows[:-1] if len(rows) > 1 else rows, first=first))


class AddsInReverseOrder(Mutant):
    points_at = Points("gradients", "norm")  # the norm alone, if the gradients lose the sums' last bits in a division

    def sabotage(self) -> None:
        self.patch_fold(lambda acc, rows, *, first: fold(acc, rows.flip(0), first=first))


class AddsInTheWireDtype(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        def low(accumulator: Tensor, contributions: Tensor, *, first: bool) -> None:
            total = contributions[0]
            for row in contributions[1:]:
                total = total + row
            fold(accumulator, total[None], first=first)

        self.patch_fold(low)


class AccumulatesOverTheBoundary(Mutant):
    points_at = Points("gradients", step=1)

    def sabotage(self) -> None:
        self.patch_fold(lambda acc, rows, *, first: fold(acc, rows, first=first and self.engine.global_steps == 0))


class LosesEarlierMicroSteps(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin

        def forgetful(first: bool, last: bool, loss: Tensor | None) -> None:
            begin(first, last, loss)
            self.engine.reducer.backward.first = True

        self.engine.reducer.begin = forgetful  # type: ignore[method-assign]


class DoubleCountsATiedWeight(Mutant):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        names = [id(p) for _, p in self.model.named_parameters(remove_duplicate=False)]
        for p in self.model.parameters():
            if p.requires_grad and names.count(id(p)) > 1:
                p.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]


class UsesTheLocalNorm(Mutant):
    points_at = Points("norm")

    def sabotage(self) -> None:
        stepper = self.engine.stepper

        def local(check: GradientCheck) -> GradientCheck:
            return dataclasses.replace(check, total=stepper._sums().sum().view(1))

        self.patch_check(local)


class ClipsTheScaledNorm(Mutant):
    points_at = Points("norm")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, total=check.total * self.engine.loss_scale**2))


class NeverClips(Mutant):
    points_at = Points("optimizer_state", "parameters")

    def sabotage(self) -> None:
        zero = self.engine.config.model_copy(update={"gradient_clipping": 0.0})
        self.engine.config = zero


def packed_with_gaps(flat: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> None:
    """pack, but the elements between the tensors stay as they are."""
    for tensor, start in zip(tensors, starts, strict=True):
        flat[start : start + tensor.numel()].copy_(tensor.as_strided((tensor.numel(),), (1,)))


class LeaksPadding(NanPadding, Mutant):
    points_at = Points("norm")

    def micro_step(self, batch: Batch) -> Tensor:
        with mock.patch.object(gradients, "pack", packed_with_gaps):
            return super().micro_step(batch)


class SeesOverflowOnRankZeroOnly(Mutant):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        self.bad = torch.zeros(1)

        def rank_zeros(check: GradientCheck) -> GradientCheck:
            dist.broadcast(self.bad, dist.get_global_rank(self.group, 0), group=self.group)
            overflow = self.bad != 0
            self.bad.zero_()
            return dataclasses.replace(check, overflow=overflow)

        self.patch_check(rank_zeros)

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        self.bad += not bool(loss.isfinite())
        return loss


class NeverSkips(Mutant):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, overflow=torch.zeros_like(check.overflow)))


class NeverLowersTheLossScale(Mutant):
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        update = self.engine.scaler.update
        self.engine.scaler.update = lambda overflow: update(False)  # type: ignore[method-assign]


class IgnoresTheSecondGroupsDecay(Mutant):
    points_at = Points("progress", "optimizer_state", "parameters")

    def sabotage(self) -> None:
        for group in self.optimizer.param_groups[1:]:
            group["weight_decay"] = self.optimizer.param_groups[0]["weight_decay"]


class IgnoresTheSecondGroupsRate(Mutant):
    points_at = Points("progress", "parameters")

    def sabotage(self) -> None:
        for group in self.optimizer.param_groups[1:]:
            group["lr"] = self.optimizer.param_groups[0]["lr"]


class MovesInactiveParameters(Mutant):
    points_at = Points("optimizer_state", "parameters")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, active=torch.ones_like(check.active)))


class SharesOneStepCount(Mutant):
    points_at = Points("parameters")

    def sabotage(self) -> None:
        stepper = self.engine.stepper
        step = stepper.step

        def shared(check: GradientCheck, factors: Tensor) -> None:
            stepper.steps = [max(stepper.steps, default=0)] * len(stepper.steps)
            step(check, factors)

        stepper.step = shared  # type: ignore[method-assign]


class KeepsStaleParametersWhole(Mutant):
    """Stage 3 does not gather again after a step."""

    points_at = Points("model_parameters", "losses")

    def sabotage(self) -> None:
        if self.engine.unsharder is not None:
            self.engine.unsharder.max_live = 10**9
            self.engine.unsharder.reshard_all = lambda: None  # type: ignore[method-assign]


class DoesNotSpreadNewParameters(Mutant):
    points_at = Points("model_parameters", "losses")

    def sabotage(self) -> None:
        self.engine.stepper._all_gather_updated = lambda state: []  # type: ignore[method-assign]


class RoundsMasterWeights(Mutant):
    points_at = Points("parameters")

    def step(self) -> Outcome:
        outcome = super().step()
        self.edit_masters(lambda master: master.copy_(master.bfloat16()))
        return outcome


class FlipsTheSign(Mutant):
    points_at = Points("optimizer_state", "parameters")

    def sabotage(self) -> None:
        step = self.engine.stepper.step
        self.engine.stepper.step = lambda check, factors: step(check, -factors)  # type: ignore[method-assign]


class NeverSteps(Mutant):
    points_at = Points("optimizer_state", "parameters")

    def sabotage(self) -> None:
        self.engine.stepper.step = lambda check, factors: None  # type: ignore[method-assign]


class MovesStateWhenBuilt(Mutant):
    points_at = Points("optimizer_state", step=0)

    def sabotage(self) -> None:
        for state in (each for each in self.engine.states if each.unit.trainable):
            for name, tensor in state.optimizer_store.memory(state.portion).items():
                if name != "master":
                    tensor.add_(1e-3)


class DdpForgetsToAverage(TorchDdp):
    """Not the reference: an engine that promises no bits is held to exact data and to the bound of its sums."""

    points_at: ClassVar[Points] = Points("gradients")

    def gradients(self) -> dict[str, Tensor]:
        return {name: g * 2 for name, g in super().gradients().items()}


class RightButSlow(Reference):
    """Takes its time; must pass."""

    def micro_step(self, batch: Batch) -> Tensor:
        time.sleep(0.002)
        return super().micro_step(batch)


MUTANTS: list[type[Mutant] | type[DdpForgetsToAverage]] = [*Mutant.__subclasses__(), DdpForgetsToAverage]
