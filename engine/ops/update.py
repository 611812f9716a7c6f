"""adam_step and sgd_step: the optimizer's elementwise formulas, each in one pass over a flat shard.

They have the same roundings as torch's single-tensor optimizers on a CPU with fused multiply-adds and an IEEE 754
square root (see exact.sqrt), so a trajectory equals torch's bit for bit. Each ``fma`` is rounded once, each other
operation is rounded by itself, and each scalar is rounded to fp32 beforehand:

    g = gradient * factor         if the factor is NaN, nothing but the copy changes

    Adam:   p = master * decay                        AdamW (decoupled decay); else p = master
            g = fma(l2, p, g)                         Adam with L2; else unchanged
            m = fma(weight1, g - exp_avg, exp_avg)    and if weight1 >= 1/2: fma(weight1 - 1, g - exp_avg, g)
            v = fma(weight2 * g, g, exp_avg_sq * beta2)
            p = p + (step_size * m) / (sqrt(v) / root2 + eps)

    SGD:    g = fma(l2, master, g)                    with weight decay; else unchanged
            b = momentum_buffer * momentum + g        with momentum; else b = g
            p = fma(step_size, b, master)

The copy of p in the parameter's dtype is rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.native import CODES, call
from zerobench.engine.ops.exact import fma, replace, scalar, single, sqrt, tiles
from zerobench.engine.ops.operators import flat, operator

_FP32 = (torch.float32,)


@dataclass(frozen=True)
class AdamValues:
    """Hyperparameters of Adam for one step of one parameter; ``step`` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool  # AdamW: decay the weights; Adam: add the decay to the gradient (L2)
    step: int


@dataclass(frozen=True)
class SgdValues:
    """Hyperparameters of SGD with momentum."""

    lr: float
    momentum: float
    weight_decay: float


def adam_step(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factor: Tensor,
    values: AdamValues,
) -> None:
    """One Adam or AdamW step in place on flat [n] tensors.

    Args:
        master: fp32; like ``exp_avg`` and ``exp_avg_sq``.
        gradient: fp32, bf16 or fp16; read as ``gradient * factor``.
        copy: receives the new master, rounded to its dtype; None if the master is the parameter.
        factor: [1], fp32. It undoes the loss scale, takes the mean over the leaves and clips, in one rounding (see
            clip_factors). If it is NaN, there is no update: ``copy`` receives the master, and nothing else changes.

    Raises:
        ValueError: shapes, dtypes or devices do not match.
    """
    decay = 1 - values.lr * values.weight_decay if values.decoupled else 1.0
    l2 = 0.0 if values.decoupled else values.weight_decay
    correction1 = 1 - values.beta1**values.step
    # ** 0.5 like torch, not math.sqrt: the two may differ in the last bit.
    root2 = (1 - values.beta2**values.step) ** 0.5
    weight1, weight2 = 1 - values.beta1, 1 - values.beta2
    scalars = single(decay, l2, weight1, values.beta2, weight2, root2, values.eps, -(values.lr / correction1))
    _ADAM(master, gradient, exp_avg, exp_avg_sq, copy, factor, *scalars)


def sgd_step(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factor: Tensor,
    values: SgdValues,
) -> None:
    """One SGD step in place on flat [n] tensors; ``momentum_buffer`` is None if momentum is 0. See adam_step."""
    scalars = single(values.weight_decay, values.momentum, -values.lr)
    _SGD(master, gradient, momentum_buffer, copy, factor, *scalars)


def adam_definition(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factor: Tensor,
    decay: float,
    l2: float,
    weight1: float,
    beta2: float,
    weight2: float,
    root2: float,
    eps: float,
    step_size: float,
) -> None:
    """Adam and AdamW in torch: the specification."""
    updates = ~factor.isnan()
    for part in tiles(master.numel()):
        p, m, v = before = master[part], exp_avg[part], exp_avg_sq[part]
        g = gradient[part].float() * factor
        p = p * decay
        if l2 != 0:
            g = fma(l2, p, g)
        m = fma(weight1, g - m, m) if weight1 < 0.5 else fma(scalar(weight1 - 1, g), g - m, g)
        v = fma(weight2 * g, g, v * beta2)
        p = p + (step_size * m) / (sqrt(v) / scalar(root2, v) + eps)
        replace(updates, before, (p, m, v))
        if copy is not None:
            copy[part].copy_(master[part])


def sgd_definition(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factor: Tensor,
    l2: float,
    momentum: float,
    step_size: float,
) -> None:
    """SGD in torch: the specification."""
    updates = ~factor.isnan()
    for part in tiles(master.numel()):
        p, g = master[part], gradient[part].float() * factor
        if l2 != 0:
            g = fma(l2, p, g)
        if momentum_buffer is not None:
            g = momentum_buffer[part] * momentum + g
            replace(updates, [momentum_buffer[part]], [g])
        replace(updates, [p], [fma(step_size, g, p)])
        if copy is not None:
            copy[part].copy_(p)


def _check_adam(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factor: Tensor,
    *scalars: float,
) -> None:
    flat("master", master, master, _FP32)
    flat("gradient", gradient, master)
    flat("exp_avg", exp_avg, master, _FP32)
    flat("exp_avg_sq", exp_avg_sq, master, _FP32)
    if copy is not None:
        flat("copy", copy, master)
    _check_factor(factor, master)


def _check_sgd(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factor: Tensor,
    *scalars: float,
) -> None:
    flat("master", master, master, _FP32)
    flat("gradient", gradient, master)
    if momentum_buffer is not None:
        flat("momentum_buffer", momentum_buffer, master, _FP32)
    if copy is not None:
        flat("copy", copy, master)
    _check_factor(factor, master)


def _check_factor(factor: Tensor, master: Tensor) -> None:
    if factor.shape != (1,) or factor.dtype != torch.float32 or factor.device != master.device:
        given = f"{tuple(factor.shape)}, {factor.dtype} on {factor.device}"
        raise ValueError(f"factor: expected shape (1,), torch.float32 on {master.device}; got {given}")


def adam_native(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factor: Tensor,
    *scalars: float,
) -> None:
    """Run the kernel of Adam and AdamW."""
    call(
        "adam_step",
        master,
        master.data_ptr(),
        gradient.data_ptr(),
        CODES[gradient.dtype],
        exp_avg.data_ptr(),
        exp_avg_sq.data_ptr(),
        *_pointer(copy),
        master.numel(),
        factor.data_ptr(),
        *scalars,
    )


def sgd_native(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factor: Tensor,
    *scalars: float,
) -> None:
    """Run the kernel of SGD."""
    call(
        "sgd_step",
        master,
        master.data_ptr(),
        gradient.data_ptr(),
        CODES[gradient.dtype],
        None if momentum_buffer is None else momentum_buffer.data_ptr(),
        *_pointer(copy),
        master.numel(),
        factor.data_ptr(),
        *scalars,
    )


def _pointer(copy: Tensor | None) -> tuple[int | None, int]:
    return (None, 0) if copy is None else (copy.data_ptr(), CODES[copy.dtype])


_ADAM = operator(
    "adam_step(Tensor(a!) master, Tensor gradient, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!)? copy, "
    "Tensor factor, float decay, float l2, float weight1, float beta2, float weight2, float root2, float eps, "
    "float step_size) -> ()",
    check=_check_adam,
    definition=adam_definition,
    native=adam_native,
)
_SGD = operator(
    "sgd_step(Tensor(a!) master, Tensor gradient, Tensor(b!)? momentum_buffer, Tensor(c!)? copy, Tensor factor, "
    "float l2, float momentum, float step_size) -> ()",
    check=_check_sgd,
    definition=sgd_definition,
    native=sgd_native,
)
