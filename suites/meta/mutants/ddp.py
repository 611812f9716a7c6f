"""Engines on torch's DDP, without a promise of bits, whose update is wrong with values that no draw has.

Class of escape: a difference within the bounds of every draw, and a rule under a schedule that one rule in five has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.subject import Batch
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.points import Points


class Ddp(TorchDdp):
    """Wrong with a value that this Scenario of :data:`RARE_VALUES` has."""

    rare: ClassVar[str]
    points_at: ClassVar[Points] = Points("optimizer_state", "parameters", "model_parameters")


def count_good_steps(scaler: torch.amp.GradScaler, number: int) -> None:
    """Set the good steps in a row that torch's scaler has counted."""
    scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": number})


class AddsNothingToTheNorm(Ddp):
    """The clip coefficient is that of the norm alone, without the 1e-6 that the contract adds."""

    rare = "scale that is no power of two"

    def _clip(self) -> Tensor | None:
        if not self.scenario.clip:
            return super()._clip()
        gradients = [each.grad for each in self.masters.values() if each.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients]))
        for gradient in gradients:
            gradient.mul_((self.scenario.clip / norm).clamp(max=1.0))
        return norm


class SchedulesTheDampingWithTheMomentum(Ddp):
    """SGD takes what a scheduled momentum leaves to one for its share of the gradient, as a moving average has it."""

    rare = "many micro-steps"

    def _update(self) -> tuple[Tensor | None, bool]:
        if self.scenario.optimizer.name == "sgd" and self.scenario.momentum_factors:
            for group in self.optimizer.param_groups:
                group["dampening"] = 1 - group["momentum"] if group["momentum"] else 0.0
        return super()._update()


class LeavesOutTheBiasCorrectionLate(Ddp):
    """From Adam's seventeenth update on."""

    rare = "twenty steps"

    def _update(self) -> tuple[Tensor | None, bool]:
        for state in self.optimizer.state.values():
            if self.scenario.optimizer.name == "adam" and state["step"] >= 16:
                state["step"].fill_(1e6)
        return super()._update()


class ComputesWithTheCastsOfAnEvaluation(Ddp):
    """Under autocast the first forward after an evaluation takes the evaluation's casts of the weights."""

    rare = "autocast over two forwards"
    points_at = Points("losses", "gradients")
    cast: Sequence[Tensor] = ()

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        if self.scenario.autocast:
            self.cast = [p.detach().clone() for p in self.model.parameters()]
        return loss

    def micro_step(self, batch: Batch) -> Tensor:
        cast, self.cast = self.cast, ()
        kept = [self._set_data(p, old) for p, old in zip(self.model.parameters(), cast, strict=False)]
        loss = super().micro_step(batch)
        for p, values in zip(self.model.parameters(), kept, strict=False):
            self._set_data(p, values)
        return loss

    def _set_data(self, parameter: Tensor, values: Tensor) -> Tensor:
        before = parameter.detach().clone()
        parameter.data.copy_(values)
        return before


class KeepsTheGradientsOfTheHead(Ddp):
    """In 16 bits its masters take the gradients that a client has zeroed, as they were before."""

    rare = "changes of a client on three ranks"
    points_at = Points("gradients")

    def zero_gradients(self, names: Collection[str]) -> None:
        in_16_bits = self.scenario.dtype != "fp32"
        super().zero_gradients([name for name in names if not (in_16_bits and name.startswith("head."))])


class LoadsTheDecayOfTheOtherGroup(Ddp):
    """A load exchanges the weight decays of the second and the third group."""

    rare = "changes of a client on three ranks"

    def load(self, directory: Path) -> None:
        super().load(directory)
        if len(groups := self.optimizer.param_groups) == 3:
            second, third = groups[1:]
            second["weight_decay"], third["weight_decay"] = third["weight_decay"], second["weight_decay"]


class KeepsTheFirstDecayOfAdagrad(Ddp):
    """Adagrad takes the weight decay that it was built with, whatever the client sets later."""

    rare = "long run on three ranks"
    first: Sequence[float] = ()

    def _update(self) -> tuple[Tensor | None, bool]:
        groups = self.optimizer.param_groups
        now = [group["weight_decay"] for group in groups]
        self.first = self.first or now
        self._decay_by(groups, self.first if self.scenario.optimizer.name == "adagrad" else now)
        done = super()._update()
        self._decay_by(groups, now)
        return done

    def _decay_by(self, groups: Sequence[dict[str, Any]], values: Sequence[float]) -> None:
        for group, value in zip(groups, values, strict=True):
            group["weight_decay"] = value


class RoundsTheSumsOfAdagradThatItLoads(Ddp):
    """To bf16, in which the checkpoint of its rule's state was written."""

    rare = "long run on three ranks"

    def load(self, directory: Path) -> None:
        super().load(directory)
        for state in self.optimizer.state.values():
            if self.scenario.optimizer.name == "adagrad":
                state["sum"].copy_(state["sum"].bfloat16())


class RoundsTheMomentumThatItLoads(Ddp):
    """To the dtype of the weights, as ``Optimizer.load_state_dict`` does with the state of 16-bit parameters."""

    rare = "twenty steps with momentum"

    def load(self, directory: Path) -> None:
        super().load(directory)
        for name, p in self.working.items():
            state = self.optimizer.state.get(self.masters[name], {})
            if (momentum := state.get("momentum_buffer")) is not None:
                momentum.copy_(momentum.to(p.dtype))


class SpreadsBuffersInAnEvaluation(Ddp):
    """An evaluation gives every rank the buffers of rank 0 that are in no state dict."""

    rare = "metric before the backward"
    points_at = Points("reads", "losses", "gradients", "evaluation")

    def evaluate(self, batch: Batch) -> Tensor:
        saved = self.model.state_dict()
        for _, buffer in [each for each in self.model.named_buffers() if each[0] not in saved]:
            dist.broadcast(buffer, dist.get_global_rank(self.group, 0), group=self.group)
        return super().evaluate(batch)


class DecaysAFrozenHead(Ddp):
    """A parameter of the last group that is frozen has a gradient of zeros: decay and momentum move it."""

    rare = "biases alone"

    def _step(self, norm: Tensor | None) -> bool:
        last = self.optimizer.param_groups[-1]["params"] if self.scenario.optimizer.third_group else []
        for name, p in self.working.items():
            if not p.requires_grad and any(self.masters[name] is each for each in last):
                self.masters[name].grad = torch.zeros_like(self.masters[name])
        return super()._step(norm)


#: Each is caught by the Scenario that it names in ``rare``.
DDP: list[type[Ddp]] = list(Ddp.__subclasses__())
