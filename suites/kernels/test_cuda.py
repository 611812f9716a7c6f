"""Tests that need a GPU: more elements than 32 bits count, and memory that kernels may touch."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zerobench.engine.ops import folding, packing, sumsq, update
from zerobench.engine.ops.exact import single
from zerobench.suites.kernels.values import assert_same
from zerobench.suites.support.checkout import ROOT, front_of_path

_MANY = (1 << 31) + 4099
_GIB = 1 << 30
_HALF = torch.bfloat16

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

#: Elements by which tensors miss the alignment of their memory: kernels then move four at once, or one.
_off = pytest.mark.parametrize("offset", [0, 1], ids=["by four", "one by one"])


_WHOLE = [0, _MANY, 0]  # the bounds of a run


def _places(n: int) -> list[slice]:
    """The start, the element at which an index leaves 31 bits, and the end."""
    return [slice(0, 4096), slice((1 << 31) - 2048, (1 << 31) + 2048), slice(n - 4096, n)]


def _compare(definition: Callable[..., object], native: Callable[..., object], *arguments: object) -> None:
    """Run the kernel on the whole and the definition on the places."""
    tensors = [a for a in arguments if isinstance(a, Tensor) and a.numel() > 1]
    parts = [[_part(a, place) for a in arguments] for place in _places(_MANY)]
    native(*arguments)
    for place, part in zip(_places(_MANY), parts, strict=True):
        definition(*part)
        expected = [a for a in part if isinstance(a, Tensor) and a.numel() > 1]
        for position, (whole, want) in enumerate(zip(tensors, expected, strict=True)):
            assert_same(whole[..., place], want.cpu(), f"tensor {position} from {place.start}")


def _part(argument: object, place: slice) -> object:
    if isinstance(argument, list) and argument == _WHOLE:
        return [0, place.stop - place.start, 0]
    return argument[..., place].clone() if isinstance(argument, Tensor) and argument.numel() > 1 else argument


def _factor() -> Tensor:
    return torch.tensor([0.5], device="cuda")


def _room(gib: int) -> None:
    """Skip if less memory is free; torch's cached memory of earlier tests is freed."""
    gc.collect()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < gib * _GIB:
        pytest.skip(f"needs {gib} GiB of GPU memory, {free / _GIB:.0f} are free")


def _random(n: int, offset: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n + offset, device="cuda", dtype=dtype)[offset:]


@_off
def test_adam_step_over_many(offset: int) -> None:
    _room(34)
    dtypes = torch.float32, _HALF, torch.float32, torch.float32, _HALF
    tensors = [_random(_MANY, offset, dtype) for dtype in dtypes]
    scalars = single(1 - 1e-5, 0.0, 0.1, 0.999, 0.001, 0.03, 1e-8, -1e-3)
    _compare(update.adam_definition, update.adam_native, *tensors, _factor(), _WHOLE, scalars)


@_off
def test_sgd_step_over_many(offset: int) -> None:
    _room(26)
    tensors = [_random(_MANY, offset) for _ in range(3)]
    _compare(update.sgd_definition, update.sgd_native, *tensors, None, _factor(), _WHOLE, single(0.1, 0.9, -0.1))


@pytest.mark.parametrize("apart", [_MANY + 1, _MANY], ids=["by four", "one by one"])
def test_fold_over_many(apart: int) -> None:
    """Rows at a distance of a multiple of four elements, and rows without a gap, at an odd distance."""
    _room(22)
    rows = torch.rand(3, apart, device="cuda", dtype=_HALF)[:, :_MANY]
    _compare(folding.definition, folding.native, _random(_MANY, 0), rows, False)


@_off
def test_sums_over_many(offset: int) -> None:
    _room(6)
    values = _random(_MANY // 1024 * 1024, offset, _HALF)
    sums = sumsq.native(values, 1024)
    for place in _places(values.numel()):
        expected = sumsq.definition(values[place], 1024)
        assert_same(sums[place.start // 1024 : place.stop // 1024], expected.cpu(), f"sums from {place.start}")


@_off
def test_pack_over_many(offset: int) -> None:
    _room(20)
    values = _random(_MANY, 0, _HALF)
    flat = torch.zeros(_MANY + 8, device="cuda")
    packing.pack_native(flat, [values], [8 - offset])
    for place in _places(_MANY):
        got = flat[8 - offset :][place]
        assert_same(got, values[place].float().cpu(), f"the packed from {place.start}")
    back = torch.zeros_like(values)
    packing.unpack_native([back], flat, [8 - offset])
    assert torch.equal(back, values)


def test_stream_and_graph() -> None:
    """Kernels run in the current stream and can be captured into a graph."""
    total, rows = torch.zeros(5000, device="cuda"), torch.rand(3, 5000, device="cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())  # it makes the rows
    with torch.cuda.stream(stream):
        folding.fold(total, rows, first=True)
    stream.synchronize()
    expected = total.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        folding.fold(total, rows, first=True)
    total.zero_()
    graph.replay()
    assert torch.equal(total, expected)


def _sanitized(root: Path, tool: str, chosen: str) -> subprocess.CompletedProcess[str]:
    """Equality tests of a few examples, under compute-sanitizer.

    Every tensor has an allocation of its own: if torch shared one out to many, an access past a tensor's end would land
    in permitted memory.
    """
    checked = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "application-only"]
    tests = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick"]
    done = subprocess.run(
        [*checked, *tests, "-k", chosen, "suites/kernels/test_equality.py"],
        cwd=root,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", **front_of_path(root)},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not support this device")
    return done


_sanitizer = pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="there is no compute-sanitizer")


@_sanitizer
@pytest.mark.parametrize("tool", ["memcheck", "initcheck", "synccheck", "racecheck"])
def test_sanitizer_is_content(tool: str) -> None:
    done = _sanitized(ROOT, tool, "cuda and not threads and not every_half")
    assert done.returncode == 0, done.stdout + done.stderr


@_sanitizer
def test_sanitizer_sees_one_element_too_many(tree: Path) -> None:
    """The test above can fail."""
    path = tree / "kernels/cuda/values.cuh"
    text = path.read_text(encoding="utf-8")
    assert "if (i + W <= n) {" in text
    path.write_text(text.replace("if (i + W <= n) {", "if (i < n) {"), encoding="utf-8")
    done = _sanitized(tree, "memcheck", "cuda and sgd")
    assert done.returncode != 0
    assert "Invalid __global__" in done.stdout + done.stderr, done.stdout + done.stderr
