"""Lion as a torch optimizer, written from the paper: Chen et al. 2023, arXiv 2302.06675, algorithm 2.

The algorithm's last line, theta - eta * (sign(c) + lambda * theta), is multiplied out as AdamW's decay is in torch: the
weights are scaled first, then they take a step of eta. torch has no Lion of its own to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT


class Lion(torch.optim.Optimizer):
    """Parameter by parameter, in plain operations of torch."""

    def __init__(self, params: ParamsT, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for theta in group["params"]:
                if theta.grad is None:
                    continue
                state = self.state[theta]
                if not state:
                    state["exp_avg"] = torch.zeros_like(theta)
                m = state["exp_avg"]
                c = beta1 * m + (1 - beta1) * theta.grad
                m.copy_(beta2 * m + (1 - beta2) * theta.grad)
                decayed = (1 - group["lr"] * group["weight_decay"]) * theta
                theta.copy_(decayed - group["lr"] * torch.sign(c))
