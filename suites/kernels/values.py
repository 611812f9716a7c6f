"""Tensors that hold any bits of a float, and their comparison bit by bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
dtypes = st.sampled_from(DTYPES)
LENGTHS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 255, 257, 1023, 1024, 1025, 3001]
lengths = st.sampled_from(LENGTHS)

#: Bit patterns of fp32 that tests should meet more often than by chance.
_ANY = [0.0, -0.0, 1.0, -1.0, 0.5, torch.inf, -torch.inf, torch.nan, 3.4028235e38, 1.1754944e-38, 1e-45, -1e-45]
#: The edges of fp16: its largest, values that round to infinity and values that do not, its subnormals and ties.
_FP16 = [
    65504.0,
    65519.996,
    65520.0,
    -65520.0,
    6.1035156e-05,
    6.0975552e-05,
    5.9604645e-08,
    2.9802322e-08,
    2.9802326e-08,
]
#: Ties in bf16, to even and away from it, and its largest.
_BF16 = [1.00390625, 1.01171875, 3.3895314e38, 3.3961775e38]
_SPECIAL = torch.tensor([*_ANY, *_FP16, *_BF16])


@dataclass
class Source:
    """Makes tensors from a seed; ``style`` is normal, bits (any pattern) or special (the ones above, mixed in)."""

    seed: int
    style: str
    offset: int  # elements by which each tensor misses the alignment of its memory

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(self.seed)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of this shape, whose rows are contiguous and further apart than they are long."""
        rows, n = ([1, *shape])[-2:]
        values = self._values(rows * (n + self.offset)).to(dtype).view(rows, n + self.offset)
        return values[:, self.offset :].view(rows, n)[0 if len(shape) == 1 else slice(None)]

    def _values(self, n: int) -> Tensor:
        if self.style == "bits":
            return torch.randint(-(2**31), 2**31, (n,), generator=self._random).int().view(torch.float32)
        values = torch.randn(n, generator=self._random)
        if self.style == "special":
            chosen = torch.randint(0, len(_SPECIAL), (n,), generator=self._random)
            values = torch.where(torch.rand(n, generator=self._random) < 0.5, values, _SPECIAL[chosen])
        return values


sources = st.builds(
    Source, st.integers(0, 2**32), st.sampled_from(["normal", "bits", "special"]), st.sampled_from([0, 0, 1, 3])
)

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_same(got: Tensor, expected: Tensor, what: str) -> None:
    """The same bits; any NaN equals any other."""
    got = got.cpu()
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape}, expected {expected.shape}"
    integer = _INTEGERS[got.element_size()]
    differ = (got.view(integer) != expected.view(integer)) & ~(got.isnan() & expected.isnan())
    if differ.any():
        at = tuple(differ.nonzero()[0].tolist())
        count = int(differ.sum())
        values = f"{float(got[at]).hex()}, expected {float(expected[at]).hex()}"
        raise AssertionError(f"{what}{list(at)}: {values}; {count} of {got.numel()} differ")
