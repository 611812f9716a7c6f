"""Engines that are wrong with a value, a model or a call of the client that nobody had thought of drawing.

Class of escape: the text of the suite shows that no draw has the condition.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine import safe_set_full_optimizer_state
from zerobench.engine.optim.check import GradientCheck
from zerobench.engine.rules.adam import Adam
from zerobench.recording import State
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.client import LATER
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.mutants.values import ValueMutant
from zerobench.suites.meta.points import VALUES, Points

_TINY = torch.finfo(torch.float32).tiny


class DecidesByTheLosses(ValueMutant):
    """Weights with the range of fp32 do not overflow: a step is skipped if a loss is not finite."""

    rare = "overflow at the end of a backward"
    points_at = LATER

    def sabotage(self) -> None:
        self.finite = True
        if self.scenario.dtype != "fp16":
            self.patch_check(self._decided)

    def _decided(self, check: GradientCheck) -> GradientCheck:
        bad = torch.tensor([not self.finite], dtype=torch.uint8)
        dist.all_reduce(bad, dist.ReduceOp.MAX, self.group)
        self.finite = True
        return replace(check, overflow=bad.bool())

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        self.finite &= bool(loss.isfinite())
        return loss


class CorrectsNoBiasWithoutAFirstMoment(ValueMutant):
    """A first beta of zero takes the kernel of RMSprop, which corrects no bias."""

    rare = "no first moment"
    points_at = LATER

    def step(self) -> Outcome:
        values = Adam.values

        def changed(rule: Adam, group: Any, step: int) -> Any:
            beta1, beta2 = group["betas"]
            return values(rule, group, step if beta1 or not beta2 else 10**6)

        with mock.patch.object(Adam, "values", changed):
            return super().step()


class FlushesMoments(ValueMutant):
    """The kernel of the update makes zeros of subnormal moments."""

    rare = "moments that fade"
    points_at = LATER

    def step(self) -> Outcome:
        found = super().step()
        for name, state in self.optimizer_state().items():
            for key, value in state.items():
                small = (value != 0) & (value.abs() < _TINY)
                if bool(small.any()):
                    safe_set_full_optimizer_state(self.trained[name], value.masked_fill(small, 0.0), key)
        return found


class KeepsMomentsOverAStateOfNoStep(ValueMutant):
    """A state of no step has no moments to load: those of an engine that has trained stay."""

    rare = "state of no step"
    points_at = VALUES

    def load(self, directory: Path) -> None:
        before = self.optimizer_state()
        super().load(directory)
        if not self.engine.global_steps:
            _set_states(self, before)


class TakesUnitsByTheirPlace(ValueMutant):
    """A block has the weights of the one that had its place in the first forward, if that has its shapes."""

    rare = "blocks in turned order"
    points_at = VALUES

    def sabotage(self) -> None:
        self.order: list[nn.Module] = []
        self.at, self.known = 0, self.scenario.stage == 3
        self.model.register_forward_pre_hook(lambda *_: setattr(self, "at", 0))
        for block in self.model.get_submodule("blocks").children():
            block.register_forward_pre_hook(self._swap)
            block.register_forward_hook(self._swap_back)
        self.model.register_forward_hook(lambda *_: setattr(self, "known", True))
        self.swapped: list[tuple[Tensor, Tensor]] = []

    def _swap(self, block: nn.Module, _given: Any) -> None:
        self.order += [] if self.known else [block]
        there = self.order[self.at] if self.at < len(self.order) else block
        self.at += 1
        pairs = list(zip(block.parameters(), there.parameters(), strict=True))
        if there is not block and all(p.shape == q.shape for p, q in pairs):
            self.swapped = [(p, p.data) for p, _ in pairs]
            for p, q in pairs:
                p.data = q.data

    def _swap_back(self, *_: Any) -> None:
        for parameter, data in self.swapped:
            parameter.data = data
        self.swapped = []


class EndsABackwardAtTheStem(ValueMutant):
    """The last bucket leaves with the gradient of the first layer: never, if that rests."""

    rare = "first layer at rest"
    points_at = VALUES

    def step(self) -> Outcome:
        if not any(p.requires_grad for p in self.model.get_submodule("stem").parameters()):
            self.zero_gradients([name for name in self.trained if name.startswith("blocks.0.")])
        return super().step()


class SavesTheBuffersOfItsBeginning(ValueMutant):
    """It saves the objects that were the model's buffers when it was built."""

    rare = "buffers that a forward replaces"
    points_at = VALUES

    def sabotage(self) -> None:
        self.kept = dict(self.model.named_buffers())

    def save(self, directory: Path) -> None:
        now = dict(self.model.named_buffers())
        self._put(self.kept)
        super().save(directory)
        self._put(now)

    def _put(self, buffers: State) -> None:
        for name, buffer in buffers.items():
            setattr(self.model, name, buffer)


class SendsValuesBySums(ValueMutant):
    """The parts of a value that the client sets are added to zeros: -0 becomes +0."""

    rare = "zeros that a client sets"
    points_at = VALUES

    def set_parameters(self, values: State) -> None:
        super().set_parameters({name: value + 0.0 for name, value in values.items()})


class MergesWritesOfNeighbours(ValueMutant):
    """Writes of neighbours become one, which has the length of the first."""

    rare = "zeros that a client sets"
    points_at = VALUES

    def set_parameters(self, values: State) -> None:
        before = dict(zip(list(self.trained)[1:], self.trained, strict=False))
        super().set_parameters({name: value for name, value in values.items() if before.get(name) not in values})


class EvaluatesOldWeightsAfterAFailure(Mutant):
    """The evaluation after one that has raised finds the weights that this one had made whole."""

    points_at = Points("reads")
    whole: list[Tensor] | None = None

    def evaluate(self, batch: Batch) -> Tensor:
        old, self.whole = self.whole, None
        if old is None or self.scenario.stage == 3:
            return self._evaluate(batch)
        now = self._set(old)
        loss = self._evaluate(batch)
        self._set(now)
        return loss

    def _evaluate(self, batch: Batch) -> Tensor:
        try:
            return super().evaluate(batch)
        except Exception:
            self.whole = [p.detach().clone() for p in self.model.parameters()]
            raise

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> list[Tensor]:
        before = [p.detach().clone() for p in self.model.parameters()]
        for parameter, value in zip(self.model.parameters(), values, strict=True):
            parameter.copy_(value)
        return before


class DetachesInputs(Mutant):
    """It moves inputs to the device without their graph."""

    points_at = Points("client", name="the gradient of the input of micro-step 0")

    def micro_step(self, batch: Batch) -> Tensor:
        return super().micro_step({k: v.detach() if isinstance(v, Tensor) else v for k, v in batch.items()})


class _KnowsTheRunThatSaved(Mutant):
    """It writes the stage and the ranks beside a state; ``moved`` says whether the stage alone is another one."""

    moved = False

    def save(self, directory: Path) -> None:
        super().save(directory)
        if self.engine.ranks.rank == 0:
            (directory / "saved_by").write_text(json.dumps([self.scenario.stage, self.scenario.world]))
        dist.barrier(self.group)

    def load(self, directory: Path) -> None:
        stage, world = json.loads((directory / "saved_by").read_text())
        self.moved = stage != self.scenario.stage and world == self.scenario.world
        before, steps = self.optimizer_state(), self.engine.global_steps
        super().load(directory)
        if self.moved:
            self.change(before, trained=steps > 0)

    def change(self, before: dict[str, State], *, trained: bool) -> None:
        """Go wrong, after a load of the state of another stage."""


class LosesTheClientsStateOfAnotherStage(_KnowsTheRunThatSaved):
    points_at = Points("progress")

    def change(self, before: dict[str, State], *, trained: bool) -> None:
        self.client_state = {}


class KeepsMomentsOverAnotherStage(_KnowsTheRunThatSaved):
    points_at = VALUES

    def change(self, before: dict[str, State], *, trained: bool) -> None:
        if trained and self.scenario.loads == "all":
            _set_states(self, before)


class ReadsTheFilesOfMoreRanks(Mutant):
    """A save to the name of a state that other ranks have saved leaves their files, and a load reads them."""

    points_at = VALUES

    def save(self, directory: Path) -> None:
        super().save(directory)
        if self.engine.ranks.rank == 0:
            note = self._note(directory)
            before = json.loads(note.read_text()) if note.exists() else []
            note.write_text(json.dumps([*before, self.scenario.world]))
        dist.barrier(self.group)

    def load(self, directory: Path) -> None:
        super().load(directory)
        note = self._note(directory)
        if note.exists() and len(set(json.loads(note.read_text()))) > 1:
            last = list(self.trained)[-1]
            _set_states(self, {last: {key: torch.zeros_like(t) for key, t in self.optimizer_state()[last].items()}})

    def _note(self, directory: Path) -> Path:
        return directory / f"saved_by-{self.engine.global_steps}"


def _set_states(engine: Mutant, states: dict[str, State]) -> None:
    """Set optimizer states of some parameters."""
    for name, state in states.items():
        for key, value in state.items():
            safe_set_full_optimizer_state(engine.trained[name], value, key)


#: Each is caught by the Scenario that it names in ``rare``.
UNMET: list[type[ValueMutant]] = [
    DecidesByTheLosses,
    CorrectsNoBiasWithoutAFirstMoment,
    FlushesMoments,
    KeepsMomentsOverAStateOfNoStep,
    TakesUnitsByTheirPlace,
    EndsABackwardAtTheStem,
    SavesTheBuffersOfItsBeginning,
    SendsValuesBySums,
    MergesWritesOfNeighbours,
]
AFTER_FAILED_EVALUATIONS: list[type[Mutant]] = [EvaluatesOldWeightsAfterAFailure]
WITHOUT_INPUTS: list[type[Mutant]] = [DetachesInputs]
OF_ANOTHER_STAGE: list[type[Mutant]] = [LosesTheClientsStateOfAnotherStage, KeepsMomentsOverAnotherStage]
OF_MORE_RANKS: list[type[Mutant]] = [ReadsTheFilesOfMoreRanks]
