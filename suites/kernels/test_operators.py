"""Every operation is a torch operator in good standing: schema, fake, in-place versions, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from zerobench.engine.ops.clipping import clip_factors
from zerobench.engine.ops.folding import fold
from zerobench.engine.ops.packing import pack, unpack
from zerobench.engine.ops.runs import Run
from zerobench.engine.ops.sumsq import chunk_sumsq
from zerobench.engine.ops.tree import tree_sum
from zerobench.engine.ops.update import SgdValues, sgd_step

_DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


def _calls(device: str) -> dict[str, tuple[Any, ...]]:
    def t(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(*shape, device=device).to(dtype)

    half = torch.bfloat16
    return {
        "adam_step": (t(9), t(9, dtype=half), t(9), t(9), t(9, dtype=half), t(2), [0, 4, 1, 5, 9, 0], [0.5] * 16),
        "sgd_step": (t(9), t(9), t(9), None, t(1), [0, 9, 0], [0.5] * 3),
        "fold": (t(9), t(3, 9, dtype=half), True),
        "chunk_sumsq": (t(64), 16),
        "tree_sum": (t(9, dtype=torch.float64),),
        "clip_factors": (t(1, dtype=torch.float64), t(1) > 2, t(9) > -1, 1.0, 2.0),
        "pack": (t(9), [t(2, 2, dtype=half), t(3)], [1, 6]),
        "unpack": ([t(2, 2, dtype=half), t(3)], t(9), [1, 6]),
    }


@pytest.mark.parametrize("device", _DEVICES)
@pytest.mark.parametrize("name", list(_calls("cpu")))
def test_opcheck(name: str, device: str) -> None:
    torch.library.opcheck(getattr(torch.ops.zerobench, name).default, _calls(device)[name])


def test_simulated() -> None:
    """Under FakeTensorMode kernels compute no value, and shapes, dtypes and devices are right, at any size."""
    with FakeTensorMode():
        values = torch.empty(2**40, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
        sums = chunk_sumsq(values, 1024)
        assert (sums.shape, sums.dtype, sums.device) == ((2**30,), torch.float64, values.device)
        fold(values, values.view(1, -1), first=True)


def test_autograd_is_told() -> None:
    """If a kernel changes a tensor that was saved for backward, that is an error, not a wrong gradient."""
    weight = torch.ones(4, requires_grad=True)
    saved = torch.ones(4)
    loss = (weight * saved).sum()
    sgd_step(saved, torch.ones(4), None, None, torch.ones(1), [Run(0, 4, 0, SgdValues(0.1, 0.0, 0.0))])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_a_whole_is_what_its_parts_are() -> None:
    """unpack undoes pack, for all strides, and the elements between the tensors are -0, which changes no sum."""
    tensors = [torch.rand(3, 4).T, torch.rand(5), torch.rand(2, 3, 4).permute(2, 0, 1)]
    starts, flat = [0, 12, 20], torch.zeros(50)
    pack(flat, tensors, starts)
    back = [torch.empty_like(t) for t in tensors]
    unpack(back, flat, starts)
    assert all(torch.equal(a, b) for a, b in zip(back, tensors, strict=True))
    between = torch.cat((flat[17:20], flat[44:]))
    assert bool((between == 0).all())
    assert bool(between.signbit().all())


def _run(n: int) -> list[Run[SgdValues]]:
    return [Run(0, n, 0, SgdValues(1, 0, 0))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fold(torch.zeros(3), torch.zeros(2, 4), first=True), "expected 3 elements"),
        (lambda: fold(torch.zeros(3), torch.zeros(3), first=True), r"expected \[world, n\]"),
        (lambda: fold(torch.zeros(3, dtype=torch.int32), torch.zeros(1, 3), first=True), "got torch.int32"),
        (lambda: fold(torch.zeros(3), torch.zeros(3, 2).T, first=True), "flat and contiguous"),
        (lambda: chunk_sumsq(torch.zeros(96), 48), "power of two"),
        (lambda: chunk_sumsq(torch.zeros(96), 64), "divides 96"),
        (lambda: pack(torch.zeros(4), [torch.zeros(3)], [2]), "does not fit into 4 at 2"),
        (lambda: pack(torch.zeros(4), [torch.zeros(3)], [-1]), "at -1"),
        (lambda: pack(torch.zeros(4), [torch.zeros(3)], []), "as many starts as tensors"),
        (lambda: pack(torch.zeros(4), [torch.zeros(2, 2)[:, 0]], [0]), "leave gaps"),
        (
            lambda: sgd_step(torch.zeros(4)[::2], torch.zeros(2), None, None, torch.ones(1), _run(2)),
            "contiguous",
        ),
        (
            lambda: sgd_step(torch.zeros(2).half(), torch.zeros(2), None, None, torch.ones(1), _run(2)),
            "torch.float32",
        ),
        (
            lambda: sgd_step(torch.zeros(2), torch.zeros(2), None, None, torch.zeros(2, 1), _run(2)),
            "factors: expected 1 dim",
        ),
        (lambda: sgd_step(torch.zeros(2), torch.zeros(2), None, None, torch.ones(1), _run(3)), "elements 0 to 3"),
        (lambda: sgd_step(torch.zeros(2), torch.zeros(2), None, None, torch.ones(0), _run(2)), "0 factors"),
        (lambda: tree_sum(torch.zeros(2)), "torch.float64"),
        (
            lambda: clip_factors(torch.zeros(1), torch.zeros(1).bool(), torch.zeros(1).bool(), 1.0, 1.0),
            "total: expected torch.float64",
        ),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    """A kernel takes pointers, so arguments that do not fit together never reach it."""
    with pytest.raises(ValueError, match=message):
        call()
