"""Definition, CPU kernel of every instruction set and CUDA kernel agree bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from zerobench.engine.ops import clipping, folding, packing, sumsq, tree, update
from zerobench.engine.ops.exact import single
from zerobench.suites.kernels.places import PLACES, Place
from zerobench.suites.kernels.values import DTYPES, Source, assert_same, dtypes, lengths, sources

pytestmark = pytest.mark.parametrize("place", PLACES)

_copies = st.one_of(st.none(), dtypes)
#: NaN: nothing but the copy changes.
_factors = st.sampled_from([1.0, 0.0, -1.0, 1 / 3, 2.0**-16, 1e-30, 1e30, torch.nan])
#: decay, l2, weight1, beta2, weight2, root2, eps, step_size: usual ones, and both forms of the interpolation.
_adam_scalars = st.tuples(
    st.sampled_from([1.0, 1 - 1e-5, 0.5]),
    st.sampled_from([0.0, 0.1, 1e-6]),
    st.sampled_from([0.1, 1 - 0.9, 0.0, 0.4999999, 0.5, 0.9, 1.0]),
    st.sampled_from([0.999, 0.95, 0.0, 1.0]),
    st.sampled_from([1 - 0.999, 0.05, 1.0]),
    st.sampled_from([(1 - 0.999) ** 0.5, 1.0]),
    st.sampled_from([1e-8, 0.0, 1e-3]),
    st.sampled_from([-1e-3, -1e-2, 0.0, -1e10]),
)
#: The forms of the interpolation differ in the last bit here, and random draws seldom have enough elements here.
_AT_ONE_HALF = (1.0, 0.0, 0.5, 0.999, 1 - 0.999, 1.0, 1e-8, -1e-3)
#: l2, momentum, step_size.
_sgd_scalars = st.tuples(st.sampled_from([0.0, 0.1]), st.sampled_from([0.9, 0.0]), st.sampled_from([-0.1, 0.0, -1e10]))


def compare(
    place: Place, definition: Callable[..., Any], native: Callable[..., Any], *arguments: Any, threads: int = 1
) -> None:
    """Run both on copies of the arguments; all changed and returned tensors must be the same."""
    expected, got = _copies_of(arguments, "cpu"), _copies_of(arguments, place.device)
    returned = definition(*expected)
    with place.in_use(threads):
        answer = native(*got)
    pairs = [*zip(got, expected, strict=True), (answer, returned)]
    for position, (one, other) in enumerate(pairs):
        for a, b in zip(_tensors(one), _tensors(other), strict=True):
            assert_same(a, b, f"{place.name}, argument {position}: ")


def _copies_of(arguments: tuple[Any, ...], device: str) -> list[Any]:
    return [_copy(a, device) if isinstance(a, Tensor) else _all(a, device) for a in arguments]


def _all(argument: Any, device: str) -> Any:
    return [_copy(t, device) for t in argument] if isinstance(argument, list) and _tensors(argument) else argument


def _copy(tensor: Tensor, device: str) -> Tensor:
    """A copy with the tensor's strides, and as far off alignment."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype, device=device).set_(storage.clone().to(device=device))  # type: ignore[no-untyped-call]
    copied: Tensor = whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return copied


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, list) else []


def _cut(n: int, factor: Tensor, scalars: list[float]) -> tuple[Tensor, list[int], list[float]]:
    """Two runs and a gap between them: the first has the given values, the second other ones, both with factors of
    their own and in the other order. The elements in no run stay as they are."""
    first, second = n // 2, n - n // 5
    others = [0.0, *scalars[1:]]
    bounds = [0, first, 1, second, n, 0]
    return torch.cat([torch.full((1,), 0.25), factor]), bounds, [*scalars, *others]


@given(sources, lengths, dtypes, _copies, _factors, _adam_scalars)
@example(Source(1, "normal", 0), 257, torch.float32, None, 1.0, _AT_ONE_HALF)
def test_adam_step(
    place: Place,
    source: Source,
    n: int,
    dtype: torch.dtype,
    copy: torch.dtype | None,
    factor: float,
    scalars: tuple[float, ...],
) -> None:
    tensors = source(n), source(n, dtype=dtype), source(n), source(n).abs()
    written = None if copy is None else source(n, dtype=copy)
    runs = _cut(n, torch.tensor([factor]), single(*scalars))
    compare(place, update.adam_definition, update.adam_native, *tensors, written, *runs)


@given(
    sources,
    lengths,
    dtypes,
    _copies,
    st.booleans(),
    _factors,
    _sgd_scalars,
)
def test_sgd_step(
    place: Place,
    source: Source,
    n: int,
    dtype: torch.dtype,
    copy: torch.dtype | None,
    buffer: bool,
    factor: float,
    scalars: tuple[float, ...],
) -> None:
    tensors = source(n), source(n, dtype=dtype), source(n) if buffer else None
    written = None if copy is None else source(n, dtype=copy)
    runs = _cut(n, torch.tensor([factor]), single(*scalars))
    compare(place, update.sgd_definition, update.sgd_native, *tensors, written, *runs)


@given(sources, lengths, dtypes, dtypes, st.integers(1, 9), st.booleans())
def test_fold(
    place: Place, source: Source, n: int, accumulator: torch.dtype, wire: torch.dtype, world: int, first: bool
) -> None:
    compare(
        place, folding.definition, folding.native, source(n, dtype=accumulator), source(world, n, dtype=wire), first
    )


@given(sources, st.integers(0, 5), dtypes, st.integers(0, 13))
@example(Source(1, "normal", 1), 3, torch.bfloat16, 12)
@example(Source(1, "normal", 0), 20, torch.float32, 13)  # the order shows in long sums of fp32 alone: others are exact
@example(Source(1, "normal", 0), 1, torch.float32, 17)  # more groups of rows than a GPU has sums waiting for otherwise
@example(Source(1, "normal", 1), 1, torch.float32, 15)
@example(Source(1, "normal", 0), 200, torch.float32, 10)
def test_chunk_sumsq(place: Place, source: Source, chunks: int, dtype: torch.dtype, power: int) -> None:
    compare(place, sumsq.definition, sumsq.native, source(chunks << power, dtype=dtype), 1 << power)


@given(sources, st.one_of(lengths, st.integers(0, 40)))
@example(Source(1, "normal", 0), 1025)  # one level by the grid on a GPU
@example(Source(1, "normal", 0), 5000)
@example(Source(1, "normal", 0), 50)  # rows of one warp
def test_tree_sum(place: Place, source: Source, n: int) -> None:
    """The exact sum is 0, so that the result is the roundings of the order, and of no other. No value is -0."""
    values = source(n).double() / 3
    shuffled = torch.randperm(2 * n, generator=torch.Generator().manual_seed(n))
    compare(place, tree.definition, tree.native, torch.cat([0 + values, 0 - values])[shuffled])


@given(
    st.one_of(st.floats(0, 1e300, allow_subnormal=False), st.sampled_from([0.0, torch.inf, torch.nan])),
    st.booleans(),
    st.lists(st.booleans(), max_size=9),
    st.sampled_from([0.0, 1e-3, 1.0, 1e30]),
    st.sampled_from([1.0, 3.0, 2.0**16, 6 * 1e-3]),
)
@example(4e-6, False, [True, False], 1e-3, 1.0)  # a norm against which the formula's 1e-6 counts
def test_clip_factors(
    place: Place, total: float, overflow: bool, active: list[bool], clip: float, divisor: float
) -> None:
    """The definition is also the same formula in Python's numbers."""
    tensors = torch.tensor([total], dtype=torch.float64), torch.tensor([overflow]), torch.tensor(active).bool()
    compare(place, clipping.definition, clipping.native, *tensors, clip, divisor)
    coefficient = min(1.0, clip / (math.sqrt(total) / divisor + 1e-6)) if clip > 0 else 1.0
    [factor] = single(coefficient / divisor)
    expected = torch.tensor([factor if each and not overflow else torch.nan for each in active])
    assert_same(clipping.definition(*tensors, clip, divisor), expected, "factors")


@given(sources, st.lists(st.tuples(lengths, dtypes, st.integers(0, 5)), max_size=9), dtypes, st.integers(0, 300))
def test_pack_and_unpack(
    place: Place, source: Source, pieces: list[tuple[int, torch.dtype, int]], dtype: torch.dtype, gap: int
) -> None:
    """Many tensors in any order, some transposed, and zeros between them and at the end of the flat buffer."""
    tensors, starts, end = _pieces(source, pieces)
    tensors, starts = tensors[::-1], starts[::-1]
    flat = source(end + gap, dtype=dtype)
    compare(place, packing.pack_definition, packing.pack_native, flat, tensors, starts)
    compare(place, packing.unpack_definition, packing.unpack_native, tensors, flat, starts)


def test_pack_takes_more_than_one_launch(place: Place) -> None:
    """Tensors of more than one block, and more of them than the table of one launch has, from and to every dtype."""
    source = Source(3, "normal", 0)
    for dtype in DTYPES:
        pieces = [(n, kind, gap) for kind in DTYPES for n, gap in [(8197, 0), (4096, 3), (4103, 4), (5, 0)]]
        tensors, starts, end = _pieces(source, [*pieces, *[(3, torch.float32, 0)] * 100])
        flat = source(end, dtype=dtype)
        compare(place, packing.pack_definition, packing.pack_native, flat, tensors, starts)
        compare(place, packing.unpack_definition, packing.unpack_native, tensors, flat, starts)


def _pieces(source: Source, pieces: list[tuple[int, torch.dtype, int]]) -> tuple[list[Tensor], list[int], int]:
    tensors, starts, end = [], [], 0
    for length, dtype, gap in pieces:
        values = source(length, dtype=dtype)
        tensors.append(values.view(length // 2, 2).T if length % 2 == 0 else values)
        starts.append(end + gap)
        end += gap + length
    return tensors, starts, end


@pytest.mark.ci
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(place: Place, threads: int) -> None:
    """Long enough to be cut among threads, at places that are no multiples of anything."""
    n, source = (3 << 18) + 4097, Source(7, "special", 1)
    half = torch.bfloat16
    adam = source(n), source(n, dtype=half), source(n), source(n).abs(), source(n, dtype=half)
    scalars = single(1 - 1e-5, 0.0, 0.1, 0.999, 0.001, 0.03, 1e-8, -1e-3)
    runs = _cut(n, torch.tensor([0.5]), scalars)
    compare(place, update.adam_definition, update.adam_native, *adam, *runs, threads=threads)
    sgd = source(n), source(n, dtype=half), source(n), source(n, dtype=half)
    runs = _cut(n, torch.tensor([0.5]), single(0.1, 0.9, -0.1))
    compare(place, update.sgd_definition, update.sgd_native, *sgd, *runs, threads=threads)
    compare(place, folding.definition, folding.native, source(n), source(3, n, dtype=half), False, threads=threads)
    compare(place, sumsq.definition, sumsq.native, source(n // 1024 * 1024), 1024, threads=threads)
    tensors, starts = [source(n // 2), source(1000), source(n - n // 2)], [0, n // 2 + 5, n // 2 + 2000]
    flat = source(n + 3000, dtype=half)
    compare(place, packing.pack_definition, packing.pack_native, flat, tensors, starts, threads=threads)
    compare(place, packing.unpack_definition, packing.unpack_native, tensors, flat, starts, threads=threads)


@pytest.mark.parametrize("threads", [2, 3])
def test_streaming_changes_nothing(place: Place, threads: int) -> None:
    """Long enough, and aligned, for the CPU's kernels to write past the caches, and no multiple of a vector."""
    n, source = (1 << 20) + 4099, Source(7, "normal", 0)
    wire = source(2, n, dtype=torch.bfloat16)
    compare(place, folding.definition, folding.native, source(n), wire, True, threads=threads)
    tensors, starts, end = _pieces(source, [(3, torch.float32, 0), (n, torch.float32, 1), (40, torch.float32, 2)])
    for first in (0, 1):  # an aligned buffer, and one that is not
        flat = source(end + 5 + first)[first:]
        compare(place, packing.pack_definition, packing.pack_native, flat, tensors, starts, threads=threads)
        compare(place, packing.unpack_definition, packing.unpack_native, tensors, flat, starts, threads=threads)


def test_every_half_is_widened_and_every_tie_narrowed(place: Place) -> None:
    """All 65,536 patterns of each half, and fp32 values at, below and above every middle between two of them."""
    for dtype in (torch.bfloat16, torch.float16):
        halves = torch.arange(-(2**15), 2**15).short().view(dtype)
        wide = torch.empty(2**16)
        compare(place, packing.pack_definition, packing.pack_native, wide, [halves], [0])
        values = halves.float().sort().values
        middle = ((values[1:].double() + values[:-1].double()) / 2).float()
        near = torch.cat(
            [middle, torch.nextafter(middle, torch.tensor(torch.inf)), torch.nextafter(middle, middle * 0)]
        )
        compare(place, packing.pack_definition, packing.pack_native, torch.empty_like(near, dtype=dtype), [near], [0])
