"""Engines with a counter or a buffer that is too small.

Class of escape: a number that few draws reach, of units, elements, micro-steps, bad steps, checkpoints or ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.optim.check import GradientCheck
from zerobench.engine.state.files_parameters import FileParameterStore
from zerobench.engine.state.unit import UnitState
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.mutants.values import LATER, STEPPED, ValueMutant
from zerobench.suites.meta.points import VALUES, Points


class HasMemoryForEightUnits(ValueMutant):
    """Every unit from the ninth on is whole in name only: its values are zeros."""

    rare = "many blocks"
    points_at = LATER

    def sabotage(self) -> None:
        unsharder = self.engine.unsharder
        if unsharder is None:
            return
        arrive = unsharder._arrive

        def arrive_in_eight(state: UnitState) -> None:
            arrive(state)
            if state.unit.index >= 8:
                state.full.zero_()

        unsharder._arrive = arrive_in_eight  # type: ignore[method-assign]


class IndexesIn16Bits(ValueMutant):
    """Loses the gradient of a parameter's elements from 2**16 on."""

    rare = "large parameter"
    points_at = Points("gradients", name="stem.weight")

    def sabotage(self) -> None:
        for p in self.model.parameters():
            if p.requires_grad and p.numel() > 1 << 16:
                p.register_hook(_first_elements)  # type: ignore[no-untyped-call]


class ReadsTwoPieces(ValueMutant):
    """Of a shard in a file the third buffer's values never arrive."""

    rare = "pieces of a shard"
    points_at = LATER

    def sabotage(self) -> None:
        for state in self.engine.states:
            if isinstance(store := state.parameter_store, FileParameterStore):
                store.load = partial(self._load_two, store.load, 2 * store._width)  # type: ignore[method-assign]

    @staticmethod
    def _load_two(load: Callable[[], Tensor], elements: int) -> Tensor:
        shard = load()
        shard[elements:] = 0
        return shard


class LosesTheFifthMicroStep(ValueMutant):
    """Has four buffers for the sums of micro-steps."""

    rare = "scale that is no power of two"
    points_at = Points("gradients")

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin
        self.nth = 0

        def count(first: bool, last: bool, loss: Tensor | None) -> None:
            self.nth = 1 if first else self.nth + 1
            begin(first, last, loss)

        self.engine.reducer.begin = count  # type: ignore[method-assign]
        for p in self.model.parameters():
            if p.requires_grad:
                p.register_hook(lambda gradient: gradient * 0 if self.nth > 4 else gradient)  # type: ignore[no-untyped-call]


class CountsMicroStepsInFourBits(ValueMutant):
    """Takes the seventeenth micro-step for the first, and starts its sum anew."""

    rare = "many micro-steps"
    points_at = Points("gradients", "reads")

    def sabotage(self) -> None:
        begin, self.nth = self.engine.reducer.begin, 0

        def count(first: bool, last: bool, loss: Tensor | None) -> None:
            self.nth = 0 if first else (self.nth + 1) % 16
            begin(self.nth == 0, last, loss)

        self.engine.reducer.begin = count  # type: ignore[method-assign]


class MovesParametersAtTheThirdBadStep(ValueMutant):
    """From the third bad step on, also with good ones between them, parameters are restored from a copy in bf16."""

    rare = "long run in fp32"
    points_at = LATER

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped and self.engine.skipped_steps >= 3:
            self.edit_masters(lambda master: master.copy_(master.bfloat16()))
        return outcome


class CountsEachBadLeaf(ValueMutant):
    """Takes two leaves that overflow in one step for two overflows."""

    rare = "long run in fp16"
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        self.bad = torch.zeros(1)
        self.patch_check(self._count)
        update = self.engine.scaler.update

        def update_for_each(overflow: bool) -> None:
            for _ in range(self.counted if overflow else 1):
                update(overflow)

        self.engine.scaler.update = update_for_each  # type: ignore[method-assign]

    def _count(self, check: GradientCheck) -> GradientCheck:
        dist.all_reduce(self.bad, group=self.group)
        self.counted = max(1, int(self.bad))
        self.bad.zero_()
        return check

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        self.bad += not bool(loss.isfinite())
        return loss


class KeepsTwoBitsOfTheWindow(ValueMutant):
    """Takes windows of three steps for longer ones."""

    rare = "long run in fp16"
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        config = self.engine.scaler.config
        window = min(config.loss_scale_window, 3)
        self.engine.scaler.config = config.model_copy(update={"loss_scale_window": window})


class AllowsThreeOverflows(ValueMutant):
    """Takes a hysteresis of three for a larger one."""

    rare = "long run in fp16"
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        scaler._hysteresis = min(scaler._hysteresis, 3)
        scaler.config = scaler.config.model_copy(update={"hysteresis": scaler._hysteresis})


class LosesMicroStepsLate(ValueMutant):
    """From the sixth step on, keeps the last micro-step only."""

    rare = "long run on three ranks"
    points_at = Points("gradients", step=5)

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin

        def forgetful(first: bool, last: bool, loss: Tensor | None) -> None:
            begin(first, last, loss)
            if self.engine.global_steps >= 5:
                self.engine.reducer.backward.first = True

        self.engine.reducer.begin = forgetful  # type: ignore[method-assign]


class AveragesTheSecondShortStepOverItsMicroSteps(ValueMutant):
    """Right in the first of two short steps in a row."""

    rare = "short steps and saves in a row"
    points_at = LATER
    short = False
    own = 0  # the micro-steps of the second one

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: self.engine.ranks.world * self.own if self.own else leaves)

    def set_micro_steps(self, number: int) -> None:
        short = number < self.scenario.accumulation
        self.own = number if short and self.short else 0
        self.short = short
        super().set_micro_steps(number)


class KeepsTheSecondSaveAsTheLatest(ValueMutant):
    """The third save to a directory does not become the one that a load takes."""

    rare = "short steps and saves in a row"
    points_at = VALUES

    def save(self, directory: Path) -> None:
        saved = sum(each.is_dir() for each in directory.iterdir())
        dist.barrier(self.group)
        self.engine.save_checkpoint(directory, client_state=dict(self.client_state), save_latest=saved != 2)


class LoadsTheLastNameByLetters(ValueMutant):
    """Of the checkpoints in a directory; so the ninth comes after the eleventh."""

    rare = "twenty steps"
    points_at = Points("progress", *LATER.parts)

    def load(self, directory: Path) -> None:
        tags = sorted(path.name for path in directory.iterdir() if path.is_dir())
        _, self.client_state = self.engine.load_checkpoint(directory, tag=tags[-1])


class EndsItsScheduleAfterTenUpdates(ValueMutant):
    rare = "twenty steps with momentum"
    points_at = Points("progress", *STEPPED.parts)

    def step(self) -> Outcome:
        last, scheduler = self.rates(), self.engine.lr_scheduler
        outcome = super().step()
        if scheduler is not None and scheduler.last_epoch > 10:
            self.set_rates(last)
        return outcome


class AveragesOverEightRanks(Mutant):
    """Counts at most eight ranks, as a node has."""

    points_at = Points("gradients")

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: min(leaves, 8 * self.engine.gradient_accumulation_steps))


#: Each is caught by the Scenario that it names in ``rare``.
COUNT_MUTANTS: list[type[ValueMutant]] = [
    HasMemoryForEightUnits,
    IndexesIn16Bits,
    ReadsTwoPieces,
    LosesTheFifthMicroStep,
    CountsMicroStepsInFourBits,
    MovesParametersAtTheThirdBadStep,
    CountsEachBadLeaf,
    KeepsTwoBitsOfTheWindow,
    AllowsThreeOverflows,
    LosesMicroStepsLate,
    AveragesTheSecondShortStepOverItsMicroSteps,
    KeepsTheSecondSaveAsTheLatest,
    LoadsTheLastNameByLetters,
    EndsItsScheduleAfterTenUpdates,
]


def _first_elements(gradient: Tensor) -> Tensor:
    kept = gradient.clone()
    kept.view(-1)[1 << 16 :] = 0
    return kept
