"""adam_step and sgd_step: the optimizer's elementwise formulas, rounding by rounding those of torch.optim.

Each is the sequence of roundings of torch's single-tensor optimizers, so that a trajectory equals theirs bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamRule:
    """Hyperparameters of Adam for one step of one parameter; ``step`` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool  # AdamW: decay the weights; Adam: add the decay to the gradient (L2)
    step: int


@dataclass(frozen=True)
class SgdRule:
    """Hyperparameters of SGD with momentum."""

    lr: float
    momentum: float
    weight_decay: float


def adam_step(
    master: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, factor: float, rule: AdamRule
) -> None:
    """One Adam or AdamW step in place on flat [n] fp32 tensors.

    The gradient is read as ``gradient * factor``: the factor undoes the loss scale, takes the mean over the leaves and
    clips, in one rounding.
    """
    grad = _scaled(gradient, factor)
    if rule.weight_decay != 0:
        if rule.decoupled:
            master.mul_(1 - rule.lr * rule.weight_decay)
        else:
            grad.add_(master, alpha=rule.weight_decay)
    exp_avg.lerp_(grad, 1 - rule.beta1)
    exp_avg_sq.mul_(rule.beta2).addcmul_(grad, grad, value=1 - rule.beta2)
    correction1 = 1 - rule.beta1**rule.step
    correction2 = 1 - rule.beta2**rule.step
    # ** 0.5 and not math.sqrt: the two may differ in the last bit, and torch uses the former.
    denominator = torch.sqrt(exp_avg_sq, out=grad).div_(correction2**0.5).add_(rule.eps)
    master.addcdiv_(exp_avg, denominator, value=-(rule.lr / correction1))


def sgd_step(master: Tensor, gradient: Tensor, momentum_buffer: Tensor | None, factor: float, rule: SgdRule) -> None:
    """One SGD step in place on flat [n] fp32 tensors; ``momentum_buffer`` is None where momentum is 0."""
    grad = _scaled(gradient, factor)
    if rule.weight_decay != 0:
        grad.add_(master, alpha=rule.weight_decay)
    if momentum_buffer is not None:
        grad = momentum_buffer.mul_(rule.momentum).add_(grad)
    master.add_(grad, alpha=-rule.lr)


def _scaled(gradient: Tensor, factor: float) -> Tensor:
    """A new fp32 tensor: gradient * fp32(factor)."""
    return gradient.float().mul_(factor) if gradient.dtype != torch.float32 else gradient * factor
