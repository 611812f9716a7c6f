"""What a rank on a GPU is made to do before its first task, and a host on which it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from zerobench.errors import UsageError
from zerobench.ranks import Pool, worker
from zerobench.workload.models.transformer import Attention


def _settings(group: dist.ProcessGroup) -> tuple[bool, bool, bool, str]:
    """What decides whether CUDA computes the same bits each time, as a rank on a GPU has it."""
    worker._compute_reproducibly()
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        os.environ["CUBLAS_WORKSPACE_CONFIG"],
    )


def test_a_gpu_computes_reproducibly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With errors, for a mere warning lets fused attention be; and nothing fills fresh memory."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with Pool(1) as ranks:
        assert ranks.run(_settings) == [(True, False, False, ":4096:8")]


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
    """A rank that finds no GPU on its host says so: rank 0 can only look at its own."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="torch sees no CUDA GPU on this rank's host; give 'cpu'"):
        worker._join(worker.RankSlot(0, 1, "cuda", 1, tmp_path))
