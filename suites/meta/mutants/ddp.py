"""Engines on torch's DDP, without a promise of bits, whose update is wrong with values that no draw has.

Class of escape: a difference within the bounds of every draw, and a rule under a schedule that one rule in five has.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.points import Points


class _Ddp(TorchDdp):
    """Wrong with a value that this Scenario of :data:`RARE_VALUES` has."""

    rare: ClassVar[str]
    points_at: ClassVar[Points] = Points("optimizer_state", "parameters", "model_parameters")


class AddsNothingToTheNorm(_Ddp):
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


class SchedulesTheDampingWithTheMomentum(_Ddp):
    """SGD takes what a scheduled momentum leaves to one for its share of the gradient, as a moving average has it."""

    rare = "many micro-steps"

    def _update(self) -> tuple[Tensor | None, bool]:
        if self.scenario.optimizer.name == "sgd" and self.scenario.momentum_factors:
            for group in self.optimizer.param_groups:
                group["dampening"] = 1 - group["momentum"] if group["momentum"] else 0.0
        return super()._update()


#: Each is caught by the Scenario that it names in ``rare``.
DDP: list[type[_Ddp]] = list(_Ddp.__subclasses__())
