"""adam_step and sgd_step: the optimizer's elementwise formulas, each in one pass over the runs of a flat shard.

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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from zerobench.engine.native import CODES, call
from zerobench.engine.ops.averages import decays, lerp, mean_square, with_l2
from zerobench.engine.ops.exact import fma, replace, scalar, single, sqrt, tiles
from zerobench.engine.ops.operators import flat, operator
from zerobench.engine.ops.runs import Run, Table, bounds, check, each

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
    factors: Tensor,
    runs: Sequence[Run[AdamValues]],
) -> None:
    """One Adam or AdamW step in place on runs of flat [n] tensors.

    Args:
        master: fp32; like ``exp_avg`` and ``exp_avg_sq``.
        gradient: fp32, bf16 or fp16; read as ``gradient * factor``.
        copy: receives the new master, rounded to its dtype; None if the master is the parameter.
        factors: fp32, by parameter. A factor undoes the loss scale, takes the mean over the leaves and clips, in one
            rounding (see clip_factors). If it is NaN, there is no update: ``copy`` receives the master, and nothing
            else changes.
        runs: the elements to update, and their hyperparameters.

    Raises:
        ValueError: shapes, dtypes or devices do not match, or a run is outside.
    """
    scalars = [scalar for run in runs for scalar in _adam_scalars(run.values)]
    _ADAM(master, gradient, exp_avg, exp_avg_sq, copy, factors, bounds(runs), scalars)


@lru_cache(maxsize=64)
def _adam_scalars(values: AdamValues) -> list[float]:
    """decay, l2, weight1, beta2, weight2, root2, eps, step_size."""
    decay, l2 = decays(values.lr, values.weight_decay, values.decoupled)
    correction1 = 1 - values.beta1**values.step
    # ** 0.5 like torch, not math.sqrt: the two may differ in the last bit.
    root2 = (1 - values.beta2**values.step) ** 0.5
    weight1, weight2 = 1 - values.beta1, 1 - values.beta2
    return single(decay, l2, weight1, values.beta2, weight2, root2, values.eps, -(values.lr / correction1))


def sgd_step(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factors: Tensor,
    runs: Sequence[Run[SgdValues]],
) -> None:
    """One SGD step in place on runs of flat [n] tensors; a run without momentum does not use the buffer. See adam_step.

    Args:
        momentum_buffer: fp32; None if no run has momentum.
    """
    scalars = [scalar for run in runs for scalar in _sgd_scalars(run.values)]
    _SGD(master, gradient, momentum_buffer, copy, factors, bounds(runs), scalars)


def _sgd_scalars(values: SgdValues) -> list[float]:
    """l2, momentum, step_size."""
    return single(values.weight_decay, values.momentum, -values.lr)


def adam_definition(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factors: Tensor,
    bounds: Sequence[int],
    scalars: Sequence[float],
) -> None:
    """Adam and AdamW in torch: the specification."""
    tensors = master, gradient, exp_avg, exp_avg_sq
    for here, which, (decay, l2, weight1, beta2, weight2, root2, eps, step_size) in each(bounds, scalars):
        factor = factors[which]
        updates = ~factor.isnan()
        for part in tiles(here.stop - here.start):
            p, g, m, v = before = [tensor[here][part] for tensor in tensors]
            g = g.float() * factor
            p = p * decay
            g = with_l2(g, p, l2)
            m, v = lerp(m, g, weight1), mean_square(v, g, beta2, weight2)
            p = p + (step_size * m) / (sqrt(v) / scalar(root2, v) + eps)
            replace(updates, (before[0], *before[2:]), (p, m, v))
            if copy is not None:
                copy[here][part].copy_(before[0])


def sgd_definition(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factors: Tensor,
    bounds: Sequence[int],
    scalars: Sequence[float],
) -> None:
    """SGD in torch: the specification."""
    for here, which, (l2, momentum, step_size) in each(bounds, scalars):
        factor = factors[which]
        updates = ~factor.isnan()
        for part in tiles(here.stop - here.start):
            p = master[here][part]
            g = with_l2(gradient[here][part].float() * factor, p, l2)
            if momentum_buffer is not None and momentum != 0:
                buffer = momentum_buffer[here][part]
                g = buffer * momentum + g
                replace(updates, [buffer], [g])
            replace(updates, [p], [fma(step_size, g, p)])
            if copy is not None:
                copy[here][part].copy_(p)


def _check_adam(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factors: Tensor,
    bounds: Sequence[int],
    scalars: Sequence[float],
) -> None:
    _check_tensors(master, gradient, copy, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    check(factors, bounds, scalars, 8, master)


def _check_sgd(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factors: Tensor,
    bounds: Sequence[int],
    scalars: Sequence[float],
) -> None:
    _check_tensors(master, gradient, copy, momentum_buffer=momentum_buffer)
    check(factors, bounds, scalars, 3, master)


def _check_tensors(master: Tensor, gradient: Tensor, copy: Tensor | None, **states: Tensor | None) -> None:
    flat("master", master, master, _FP32)
    flat("gradient", gradient, master)
    for name, state in states.items():
        if state is not None:
            flat(name, state, master, _FP32)
    if copy is not None:
        flat("copy", copy, master)


def adam_native(
    master: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    copy: Tensor | None,
    factors: Tensor,
    bounds: Sequence[int],
    scalars: Sequence[float],
) -> None:
    """Run the kernel of Adam and AdamW."""
    table = Table(factors, bounds, scalars)
    states = exp_avg.data_ptr(), exp_avg_sq.data_ptr()
    _call("adam_step", master, gradient, *states, copy=copy, table=table)


def sgd_native(
    master: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor | None,
    copy: Tensor | None,
    factors: Tensor,
    bounds: Sequence[int],
    scalars: Sequence[float],
) -> None:
    """Run the kernel of SGD."""
    table = Table(factors, bounds, scalars)
    buffer = None if momentum_buffer is None else momentum_buffer.data_ptr()
    _call("sgd_step", master, gradient, buffer, copy=copy, table=table)


def _call(name: str, master: Tensor, gradient: Tensor, *states: int | None, copy: Tensor | None, table: Table) -> None:
    pointer = (None, 0) if copy is None else (copy.data_ptr(), CODES[copy.dtype])
    start = master.data_ptr(), gradient.data_ptr(), CODES[gradient.dtype]
    call(name, master, *start, *states, *pointer, *table.arguments)


_ADAM = operator(
    "adam_step(Tensor(a!) master, Tensor gradient, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!)? copy, "
    "Tensor factors, int[] bounds, float[] scalars) -> ()",
    check=_check_adam,
    definition=adam_definition,
    native=adam_native,
)
_SGD = operator(
    "sgd_step(Tensor(a!) master, Tensor gradient, Tensor(b!)? momentum_buffer, Tensor(c!)? copy, Tensor factors, "
    "int[] bounds, float[] scalars) -> ()",
    check=_check_sgd,
    definition=sgd_definition,
    native=sgd_native,
)
