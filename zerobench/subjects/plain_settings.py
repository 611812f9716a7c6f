"""The settings of torch's optimizers, norms and loss scalers that change no value; every wrapper of torch has them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.scenario import Scenario

_ZERO_GRAD = "https://docs.pytorch.org/docs/2.13/generated/torch.optim.Optimizer.zero_grad.html"
_AMP = "https://docs.pytorch.org/docs/2.13/amp.html#gradient-scaling"

ZEROS = "zero_grad(set_to_none=False)"
LOOP = "optimizer(foreach=False)"
SCALER = "GradScaler"
TOTAL = "get_total_norm and clip_grads_with_norm_"
NORM_LOOP = "clip_grad_norm_(foreach=False)"
SETTINGS = ZEROS, LOOP, SCALER, TOTAL, NORM_LOOP


def unsupported(scenario: Scenario) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    if ZEROS in scenario.settings and scenario.leaves_some_out:
        return f"{ZEROS} gives a parameter that a step does not use a gradient of zeros: {_ZERO_GRAD}"
    if SCALER in scenario.settings and scenario.dtype != "fp16":
        return f"{SCALER} is for fp16: {_AMP}"
    norm = {TOTAL, NORM_LOOP}.intersection(scenario.settings)
    if norm and not scenario.clip:
        return f"{min(norm)} is for a step that clips"
    if len(norm) > 1:
        return "a step clips in one way"
    return None


def foreach(scenario: Scenario) -> bool | None:
    """Whether the optimizer computes with lists of tensors; None leaves it to torch."""
    return False if LOOP in scenario.settings else None


def clip(parameters: Any, scenario: Scenario) -> Tensor:
    """Clip the gradients by their norm, which it returns."""
    limit, norm_type = scenario.clip or math.inf, float(scenario.norm_type)
    given, utils = list(parameters), torch.nn.utils
    if TOTAL in scenario.settings:
        norm = utils.get_total_norm([p.grad for p in given if p.grad is not None], norm_type)
        utils.clip_grads_with_norm_(given, limit, norm)
        return norm
    loop = False if NORM_LOOP in scenario.settings else None
    return utils.clip_grad_norm_(given, limit, norm_type, foreach=loop)


class StaticScaler:
    """torch's GradScaler at a scale that stays, for an optimizer; it tells whether it left the step out."""

    def __init__(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, scale: float) -> None:
        self.scaler, self.optimizer, self.scale = scaler, optimizer, scale
        self._stepped = False
        optimizer.register_step_post_hook(self._note)

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def step(self) -> bool:
        """Step the optimizer, unless a gradient is not finite; returns whether it was left out."""
        self._stepped = False
        self.scaler.step(self.optimizer)
        self.scaler.update(self.scale)
        return not self._stepped


def scaler(scenario: Scenario, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, *, sharded: bool) -> Any:
    """The scaler of a Scenario; None if it has none. FSDP1 has its own, as its ranks have other gradients."""
    if SCALER not in scenario.settings:
        return None
    scale = scenario.loss_scale.static
    if sharded:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        own: Any = ShardedGradScaler(device=scenario.device, init_scale=scale, process_group=group)
    else:
        own = torch.amp.GradScaler(scenario.device, init_scale=scale)
    return StaticScaler(own, optimizer, scale)
