"""The two seams of communication: the mesh of ranks, and the wire format of gradients."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.engine.comm import waiting
from zerobench.engine.comm.mesh import Mesh
from zerobench.engine.comm.wire import CastFormat, WireFormat
from zerobench.ranks import Pool


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (
            Mesh(shard=1, replicate=2),
            "replicate=2 is hybrid sharding, which this engine does not offer; use replicate=1",
        ),
        (Mesh(shard=3), "a mesh of 3 ranks does not fit the process group, which has 1"),
    ],
)
def test_meshes_that_are_refused(mesh: Mesh, message: str) -> None:
    """Replicas, and another number of ranks than the group's."""
    with pytest.raises(zerobench.ConfigError, match=message):
        _engine(0, mesh=mesh)


def test_the_mesh_of_all_ranks() -> None:
    """The default, and the same if it is given."""
    assert _engine(0).ranks.mesh == _engine(0, mesh=Mesh(shard=1)).ranks.mesh == Mesh(shard=1, replicate=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cast_costs_no_pass(dtype: torch.dtype) -> None:
    """Values packed in the wire's dtype are the message, and the message is folded as it is."""
    wire, values = CastFormat(dtype), torch.randn(2, 8).to(dtype)
    message = wire.encode(values)
    assert message.data_ptr() == values.data_ptr() == wire.decode(message).data_ptr()
    assert wire.nbytes(16) == message.nbytes
    assert torch.equal(wire.encode(values.float()), values)


class _Bytes(WireFormat):
    """A value travels as its four bytes, in another order."""

    packed = decoded = torch.float32

    def encode(self, values: Tensor) -> Tensor:
        return values.float().contiguous().view(torch.uint8).flip(1)

    def decode(self, message: Tensor) -> Tensor:
        return message.flip(1).view(torch.float32)

    def nbytes(self, elements: int) -> int:
        return elements * 4


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_format_that_is_no_cast(pool: Pool, stage: int) -> None:
    """An engine trains by it: a message may have another dtype and length than the values."""
    for cast, other in pool.run(_by_both, stage, world=2):
        assert all(torch.equal(one, same) for one, same in zip(cast, other, strict=True))


def _by_both(group: dist.ProcessGroup, stage: int) -> list[list[Tensor]]:
    runs = []
    for wire in (CastFormat(torch.float32), _Bytes()):
        engine = _engine(stage, process_group=group, steps=2)
        engine.reducer.wire = wire
        for index in range(4):
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(2 * index + dist.get_rank(group)))
            engine.backward(engine(x).square().mean())
            engine.step()
        found = [zerobench.safe_get_full_fp32_param(parameter) for parameter in engine.module.parameters()]
        runs.append([parameter for parameter in found if parameter is not None])
        engine.destroy()
    return runs


def _engine(stage: int, steps: int = 1, **given: Any) -> zerobench.Engine:
    torch.manual_seed(0)
    zero = {"stage": stage, "chunk_size": 32, "reduce_bucket_size": 64, "stage3_param_persistence_threshold": 0}
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": steps,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": zero,
    }
    return zerobench.initialize(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), config, **given)[0]


def _save_late(group: dist.ProcessGroup, folder: Path) -> list[str]:
    """Rank 0 saves, and the other rank a second later; what each logs as it waits."""
    engine = _engine(0, process_group=group)
    told: list[str] = []
    log, handler = logging.getLogger("zerobench.engine.comm"), logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    time.sleep(dist.get_rank(group))
    try:
        with mock.patch.object(waiting, "PATIENCE", 0.3):
            engine.save_checkpoint(folder)
    finally:
        log.removeHandler(handler)
    return told


def test_a_rank_that_waits_says_so(pool: Pool, tmp_path: Path) -> None:
    """A call that another rank makes late, or never, is named by the rank that waits, which goes on waiting."""
    told, _ = pool.run(_save_late, tmp_path, world=2)
    assert told[0].startswith("rank 0 has waited 0.3 s for the other ranks. Every rank must make this call")
    assert "engine.save_checkpoint(folder)" in told[0]
