"""Engines that are wrong for a client's calls under one more condition: an overflow, an edit, a load, a short step.

Class of escape: a property of the client's side with so few draws that a second rare field hardly meets it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine import safe_set_full_optimizer_state
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.client import LATER
from zerobench.suites.meta.mutants.ddp import Ddp, count_good_steps
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.mutants.unmet import UNMET
from zerobench.suites.meta.mutants.values import ValueMutant
from zerobench.suites.meta.points import VALUES, Points


class KeepsTheScaleOfAnUnreadOverflow(Mutant):
    """The scaler learns of an overflow from the outcome, which nobody reads."""

    points_at = LATER

    def advance(self) -> None:
        before, skipped = self.engine.scaler.state(), self.engine.skipped_steps
        super().advance()
        if self.engine.skipped_steps > skipped:
            self.engine.scaler.restore(**before)


class SavingRefillsTheHysteresis(Mutant):
    points_at = LATER

    def save(self, directory: Path) -> None:
        super().save(directory)
        scaler = self.engine.scaler
        scaler.restore(**scaler.state() | {"hysteresis": scaler.config.hysteresis})


class SavingForgetsGoodSteps(TorchDdp):
    """A save makes a new scaler's count of good steps."""

    points_at = LATER

    def save(self, directory: Path) -> None:
        super().save(directory)
        if self.scenario.scales_dynamically and self.scaler is not None:
            count_good_steps(self.scaler.scaler, 0)


class KeepsTheHysteresisInItsThread(Mutant):
    points_at = LATER

    def sabotage(self) -> None:
        self.of_thread = threading.local()

    def step(self) -> Outcome:
        scaler = self.engine.scaler
        left = getattr(self.of_thread, "left", scaler.config.hysteresis)
        scaler.restore(**scaler.state() | {"hysteresis": left})
        outcome = super().step()
        self.of_thread.left = scaler.state()["hysteresis"]
        return outcome


class EditsOnTheFirstRankOfTheJob(Mutant):
    """Rank 0 of the job sets the client's values: in a group without it nobody does."""

    points_at = LATER

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.first = dist.get_global_rank(group, 0)

    def set_parameters(self, values: State) -> None:
        if self.first == 0:
            super().set_parameters(values)


class ClipsByTheDefaultDtype(Mutant):
    """The largest norm is a tensor of torch's default dtype, in which 0.05 is another number."""

    points_at = LATER

    def step(self) -> Outcome:
        clip = float(torch.tensor(self.scenario.clip))
        self.engine.config = self.engine.config.model_copy(update={"gradient_clipping": clip})
        return super().step()


class SetsModesInALoad(Mutant):
    points_at = Points("client", name="the mode of blocks.0, by load")

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.model.train()


class ClearsAttributesInALoad(Mutant):
    points_at = Points("client", name="the attribute of stem.weight, by load")

    def load(self, directory: Path) -> None:
        super().load(directory)
        for each in self.model.parameters():
            each.__dict__.pop("of_client", None)


class SavesNoMomentsOnceLoaded(Mutant):
    """The states that a load brings are there from the next step on, and a save before it writes zeros."""

    points_at = VALUES
    fresh = False

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.fresh = True

    def micro_step(self, batch: Batch) -> Tensor:
        self.fresh = False
        return super().micro_step(batch)

    def save(self, directory: Path) -> None:
        states = self.optimizer_state() if self.fresh else {}
        self._set({name: {key: torch.zeros_like(t) for key, t in each.items()} for name, each in states.items()})
        super().save(directory)
        self._set(states)

    def _set(self, states: dict[str, State]) -> None:
        for name, each in states.items():
            for key, value in each.items():
                safe_set_full_optimizer_state(self.trained[name], value, key)


class PutsOffAShortStep(Ddp):
    """After a short step the first parameter has its value when somebody reads one, or after the next forward."""

    rare = "readings within short steps"
    points_at = LATER
    later: tuple[Tensor, Tensor] | None = None

    def _update(self) -> tuple[Tensor | None, bool]:
        first = next(iter(self.working.values())).detach()
        before, short = first.clone(), self.boundary < self.scenario.accumulation
        found = super()._update()
        if short:
            self.later = first, first.clone()
            first.copy_(before)
        return found

    def _catch_up(self) -> None:
        if self.later is not None:
            first, value = self.later
            first.copy_(value)
            self.later = None

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        self._catch_up()
        return loss

    def parameters(self) -> State:
        self._catch_up()
        return super().parameters()

    def evaluate(self, batch: Batch) -> Tensor:
        self._catch_up()
        return super().evaluate(batch)


class EvaluatesWithTheBuffersOfTheStep(Ddp):
    """An evaluation between micro-steps has the buffers with which the step began."""

    rare = "many micro-steps"
    points_at = Points("reads")

    def _begin(self, batch: Batch) -> None:
        self.first = [buffer.clone() for buffer in self.model.buffers()]
        super()._begin(batch)

    def evaluate(self, batch: Batch) -> Tensor:
        if not self.micro_steps:
            return super().evaluate(batch)
        now = [buffer.clone() for buffer in self.model.buffers()]
        self._set_buffers(self.first)
        loss = super().evaluate(batch)
        self._set_buffers(now)
        return loss

    def _set_buffers(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self.model.buffers(), values, strict=True):
            buffer.copy_(value)


class ReducesTheLastBucketTwice(TorchDdp):
    """What is beyond the first 25 MiB of gradients has the mean of the ranks once more."""

    points_at = Points("optimizer_state", "parameters")

    def _unscale(self) -> None:
        size = 0
        for p in reversed(self.working.values()):
            size += p.nbytes
            if size > 25 << 20 and p.grad is not None:
                p.grad.div_(dist.get_world_size(self.group))
        super()._unscale()


UNREAD_AT_ONCE: list[Any] = [KeepsTheScaleOfAnUnreadOverflow]
SAVING_AT_ONCE: list[Any] = [SavingRefillsTheHysteresis, SavingForgetsGoodSteps]
THREADS_AT_ONCE: list[Any] = [KeepsTheHysteresisInItsThread]
GROUPS_AT_ONCE: list[Any] = [EditsOnTheFirstRankOfTheJob]
MODES_AT_ONCE: list[Any] = [ClipsByTheDefaultDtype]
IN_LOADS: list[Any] = [SetsModesInALoad, ClearsAttributesInALoad]
SAVED_AT_ONCE: list[type[Mutant]] = [SavesNoMomentsOnceLoaded]
OF_RARE_VALUES: list[type[Ddp] | type[ValueMutant]] = [PutsOffAShortStep, EvaluatesWithTheBuffersOfTheStep, *UNMET]
