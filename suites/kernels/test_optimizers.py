"""The steps are torch.optim's, bit for bit, as far as a square root is a square root."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerobench.engine.ops.update import AdamRule, SgdRule, adam_step, sgd_step
from zerobench.oracles.optimizer import IeeeSqrt
from zerobench.suites.kernels.values import assert_same

_STEPS = 4

_fused = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="torch fuses multiply-adds only where the CPU can",
)

_decays = st.sampled_from([0.0, 0.1])
_rates = st.sampled_from([1e-3, 0.1])
_seeds = st.integers(0, 2**32)


def _gradients(seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(1001, generator=random) * 10.0 ** (step - 2) for step in range(_STEPS + 1)]


@_fused
@given(_seeds, _rates, st.sampled_from([0.9, 0.5, 0.2, 0.0]), st.sampled_from([0.999, 0.9]), _decays, st.booleans())
def test_adam(seed: int, lr: float, beta1: float, beta2: float, weight_decay: float, decoupled: bool) -> None:
    start, *gradients = _gradients(seed)
    theirs, ours = torch.nn.Parameter(start.clone()), start.clone()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([theirs], lr=lr, betas=(beta1, beta2), weight_decay=weight_decay, foreach=False)
    exp_avg, exp_avg_sq = torch.zeros_like(start), torch.zeros_like(start)
    for step, gradient in enumerate(gradients, start=1):
        theirs.grad = gradient.clone()
        with IeeeSqrt():
            optimizer.step()
        rule = AdamRule(lr, beta1, beta2, 1e-8, weight_decay, decoupled, step)
        adam_step(ours, gradient, exp_avg, exp_avg_sq, None, 1.0, rule)
        assert_same(ours, theirs.detach(), f"parameter after step {step}")
    assert_same(exp_avg, optimizer.state[theirs]["exp_avg"], "exp_avg")
    assert_same(exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"], "exp_avg_sq")


@_fused
@given(_seeds, _rates, st.sampled_from([0.0, 0.9]), _decays)
def test_sgd(seed: int, lr: float, momentum: float, weight_decay: float) -> None:
    start, *gradients = _gradients(seed)
    theirs, ours = torch.nn.Parameter(start.clone()), start.clone()
    optimizer = torch.optim.SGD([theirs], lr=lr, momentum=momentum, weight_decay=weight_decay, foreach=False)
    buffer = torch.zeros_like(start) if momentum else None
    for step, gradient in enumerate(gradients, start=1):
        theirs.grad = gradient.clone()
        optimizer.step()
        sgd_step(ours, gradient, buffer, None, 1.0, SgdRule(lr, momentum, weight_decay))
        assert_same(ours, theirs.detach(), f"parameter after step {step}")


def test_roots_are_rounded_right() -> None:
    """IeeeSqrt takes the nearest fp32 value to each root on every CPU; torch's own root may be another, or may not.

    A root is the nearest if the value lies between the squares of the middles to both neighbours, which fp64 holds
    exactly: 25 bits, squared.
    """
    values = torch.rand(10**5, generator=torch.Generator().manual_seed(0)).clamp(min=2.0**-100)
    with IeeeSqrt():
        roots = values.sqrt()
    below, above = (torch.nextafter(roots, torch.tensor(end)).double() for end in (0.0, torch.inf))
    exact, middle = values.double(), roots.double()
    assert ((((below + middle) / 2) ** 2 < exact) & (exact < ((middle + above) / 2) ** 2)).all()
