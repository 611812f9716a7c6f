"""The settings of a rank on a GPU before its first task, a host on which it cannot work, and values on their way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from zerobench.digests import bits
from zerobench.errors import UsageError
from zerobench.machine.products import fix_gpu
from zerobench.ranks import Pool, worker
from zerobench.ranks.message import decode, encode
from zerobench.workload.models.transformer import Attention


def _settings(group: dist.ProcessGroup) -> tuple[bool, bool, bool, str]:
    """The settings by which CUDA computes the same bits each time, on a rank on a GPU."""
    fix_gpu()
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        os.environ["CUBLAS_WORKSPACE_CONFIG"],
    )


def test_a_gpu_computes_reproducibly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting raises errors, because a mere warning permits fused attention; fresh memory is not filled."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with Pool(1) as ranks:
        assert ranks.run(_settings) == [(True, False, False, ":4096:8")]


def _products_elsewhere() -> list[bool]:
    """Whether products have the same bits if an operand begins any number of elements after an aligned address."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 37, generator=generator), torch.randn(29, 37, generator=generator)
    expected, seen = x @ weight.T, []
    for offset in range(1, 16):
        moved = torch.empty(offset + x.numel())[offset:].view(x.shape).copy_(x)
        seen.append(torch.equal(moved @ weight.T, expected))
    return seen


def _on_a_rank(group: dist.ProcessGroup) -> list[bool]:
    return _products_elsewhere()


def test_products_do_not_depend_on_addresses(pool: Pool) -> None:
    """Not on a rank and not here, where the oracles run: an engine may keep parameters in the middle of a buffer."""
    assert all(map(all, [_products_elsewhere(), *pool.run(_on_a_rank)]))


def _repeats(group: dist.ProcessGroup, dtype: torch.dtype) -> bool:
    """Whether attention over many blocks of keys has the same gradients each time."""
    attention = Attention(512, 8, causal=True).to("cuda", dtype)
    x = torch.randn(4, 2048, 512, device="cuda", dtype=dtype, requires_grad=True)
    seen = [torch.autograd.grad(attention(x).square().sum(), [x, *attention.parameters()]) for _ in range(8)]
    return all(torch.equal(a, b) for again in seen for a, b in zip(seen[0], again, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_on_a_gpu(dtype: torch.dtype) -> None:
    """The memory-efficient kernel and flash attention give the same bits each time."""
    with Pool(1, "cuda") as ranks:
        assert ranks.run(_repeats, dtype) == [True]


def test_a_host_without_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If a rank finds no GPU on its host, it reports that: rank 0 can only check its own."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="torch sees no CUDA GPU on this rank's host; give 'cpu'"):
        worker._join(worker.RankSlot(0, 1, "cuda", 1, tmp_path))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 3), (0, 2)], ids=str)
def test_values_travel_whatever_their_strides(shape: tuple[int, ...]) -> None:
    """A tensor with gaps keeps its bits in a message and in a digest, also one of a single element, which torch takes
    for contiguous whatever its stride."""
    plain = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    gapped = torch.stack([plain, plain + 7], dim=-1)[..., 0]
    assert decode(encode({"value": gapped}))["value"].tolist() == plain.tolist()
    assert bits({"value": gapped}) == bits({"value": plain})
