"""The definitions' fused multiply-add and square root, against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zerobench.engine.ops.exact import fma, single, sqrt, sqrt64

_floats = st.one_of(
    st.floats(width=32),
    st.floats(width=32, min_value=0.5, max_value=2.0),
    # Few bits set, far apart: products that lie on, or just beside, the middle of two fp32 values.
    st.builds(
        lambda sign, bits, power: single(sign * (1.0 + sum({2.0**-b for b in bits})) * 2.0**power)[0],
        st.sampled_from([-1.0, 1.0]),
        st.lists(st.integers(1, 23), max_size=3),
        st.sampled_from([-149, -126, -100, -48, -25, -24, -23, -1, 0, 1, 23, 24, 25, 48, 100, 127]),
    ),
)


def rounded(exact: Fraction) -> float:
    """The fp32 value nearest to an exact one, ties to even."""
    magnitude = abs(exact)
    exponent = max(-149, _floor_log2(magnitude) - 23)
    steps = round(magnitude / Fraction(2) ** exponent)  # Fraction rounds ties to even
    value = math.inf if steps * Fraction(2) ** exponent >= Fraction(2) ** 128 else math.ldexp(steps, exponent)
    return math.copysign(value, exact)


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def _expected(a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return rounded(exact) if exact else a * b + c if a == 0 or b == 0 else 0.0 * (c or 1.0) ** 2


def _one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32)


@settings(max_examples=400)
@given(_floats, _floats, _floats)
@example(1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60)  # the fp64 sum is the middle of two fp32 values; c decides
@example(1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-60))
@example(2.0**-75, 2.0**-75, 0.0)  # half the least subnormal: a tie, to even
@example(2.0**-75, 2.0**-75, 2.0**-149)
@example(2.0**64, 2.0**64, -(2.0**127))
@example(-0.0, 1.0, -0.0)
@example(3.0, 1.0, -3.0)
def test_fma(a: float, b: float, c: float) -> None:
    expected = _expected(a, b, c)
    for got in (float(fma(_one(a), _one(b), _one(c))), float(fma(a, _one(b), _one(c)))):
        same = got == expected and math.copysign(1, got) == math.copysign(1, expected)
        same |= math.isnan(got) and math.isnan(expected)
        assert same, f"fma({a.hex()}, {b.hex()}, {c.hex()}) is {expected.hex()}, got {got.hex()}"


@settings(max_examples=400)
@given(st.floats(width=32, min_value=0.0, exclude_min=True, allow_infinity=False))
def test_sqrt(x: float) -> None:
    got = float(sqrt(_one(x)))
    below, above = (_one(got).nextafter(_one(target)).double().item() for target in (-math.inf, math.inf))
    low, high = ((Fraction(side) + Fraction(got)) / 2 for side in (below, above))
    assert low**2 < Fraction(x) < high**2, f"sqrt({x.hex()}) is not {got.hex()}"


def test_sqrt64() -> None:
    """Every root is Python's, which IEEE 754 rounds: at every exponent, and at values whose roots are near middles."""
    random = torch.Generator().manual_seed(0)
    values = (torch.rand(1 << 16, generator=random, dtype=torch.float64) + 1).tolist()
    drawn = [math.ldexp(value, index % 2040 - 1020) for index, value in enumerate(values)]
    middles = [math.nextafter(value * value, side) for value in values[:4096] for side in (0.0, math.inf)]
    special = [0.0, 1.0, 2.0, 4.0, math.nextafter(4.0, 0.0), math.nextafter(1.0, 2.0), math.inf]
    given = [*drawn, *middles, *special]
    roots = sqrt64(torch.tensor(given, dtype=torch.float64)).tolist()
    assert roots == [math.sqrt(value) for value in given]
    assert math.isnan(float(sqrt64(torch.tensor([math.nan], dtype=torch.float64))))
