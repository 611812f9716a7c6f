"""What only a GPU can show: more elements than 32 bits count, and memory that is touched where it may be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.ops import fold, pack, sumsq, update
from engine.ops.exact import single
from suites.kernels.values import assert_same

_MANY = (1 << 31) + 4099
_GIB = 1 << 30

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def _places(n: int) -> list[slice]:
    """The start, where an index leaves 31 bits, and the end."""
    return [slice(0, 4096), slice((1 << 31) - 2048, (1 << 31) + 2048), slice(n - 4096, n)]


def _compare(definition: Callable[..., object], native: Callable[..., object], *arguments: object) -> None:
    """Run the kernel on the whole and the definition on the places."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    parts = [[_part(a, place) for a in arguments] for place in _places(_MANY)]
    native(*arguments)
    for place, part in zip(_places(_MANY), parts, strict=True):
        definition(*part)
        expected = [a for a in part if isinstance(a, Tensor)]
        for position, (whole, want) in enumerate(zip(tensors, expected, strict=True)):
            assert_same(whole[..., place], want.cpu(), f"tensor {position} from {place.start}")


def _part(argument: object, place: slice) -> object:
    return argument[..., place].clone() if isinstance(argument, Tensor) else argument


@pytest.fixture
def room() -> None:
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    if free < 64 * _GIB:
        pytest.skip(f"needs 64 GiB of GPU memory, {free / _GIB:.0f} are free")


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, device="cuda", dtype=dtype)


@pytest.mark.usefixtures("room")
def test_adam_step_over_many() -> None:
    half = torch.bfloat16
    tensors = _random(_MANY), _random(_MANY, dtype=half), _random(_MANY), _random(_MANY), _random(_MANY, dtype=half)
    scalars = single(0.5, 1 - 1e-5, 0.0, 0.1, 0.999, 0.001, 0.03, 1e-8, -1e-3)
    _compare(update.adam_definition, update.adam_native, *tensors, *scalars)


@pytest.mark.usefixtures("room")
def test_sgd_step_over_many() -> None:
    tensors = _random(_MANY), _random(_MANY), _random(_MANY), None
    _compare(update.sgd_definition, update.sgd_native, *tensors, *single(0.5, 0.1, 0.9, -0.1))


@pytest.mark.usefixtures("room")
def test_fold_over_many() -> None:
    _compare(fold.definition, fold.native, _random(_MANY), _random(3, _MANY, dtype=torch.bfloat16), False)


@pytest.mark.usefixtures("room")
def test_sums_and_pack_over_many() -> None:
    values = _random(_MANY // 1024 * 1024, dtype=torch.bfloat16)
    sums = sumsq.native(values, 1024)
    assert_same(sums[-4:], sumsq.definition(values[-4096:], 1024).cpu(), "the last sums")
    flat = torch.zeros(values.numel() + 7, device="cuda")
    pack.pack_native(flat, [values], [7])
    assert_same(flat[-4096:], values[-4096:].float().cpu(), "the end of the packed")
    back = torch.zeros_like(values)
    pack.unpack_native([back], flat, [7])
    assert torch.equal(back, values)


def test_stream_and_graph() -> None:
    """Kernels run in the current stream and can be captured into a graph."""
    total, rows = torch.zeros(5000, device="cuda"), _random(3, 5000)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())  # which makes the rows
    with torch.cuda.stream(stream):
        fold.fold(total, rows, first=True)
    stream.synchronize()
    expected = total.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fold.fold(total, rows, first=True)
    total.zero_()
    graph.replay()
    assert torch.equal(total, expected)


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="there is no compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer_is_content(tool: str) -> None:
    """The equality tests of a few examples, under compute-sanitizer."""
    tests = [sys.executable, "-m", "pytest", "-p", "suites.plugin", "-n", "0", "-q", "--hypothesis-profile", "quick"]
    tests += ["-k", "cuda and not threads and not every_half", str(Path(__file__).with_name("test_equality.py"))]
    checked = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "all", *tests]
    root = Path(__file__).parents[2]
    done = subprocess.run(checked, cwd=root, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
