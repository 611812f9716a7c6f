"""FSDP1 in bf16 with reentrant checkpointing: a block that is called twice in a forward gets a wrong gradient."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.utils.checkpoint import checkpoint

RANKS = 2


class Model(nn.Module):
    """``stem``, then ``block`` twice, each call under checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.block, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x.sum()


def gradient(sharded: bool, dtype: torch.dtype, reentrant: bool) -> torch.Tensor:
    """The whole gradient of the block's weight, whose elements dtype represents exactly."""
    model = Model(reentrant)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    if not sharded:
        model.to(dtype)(torch.ones(2, 4, dtype=dtype)).backward()
        assert model.block.weight.grad is not None
        return model.block.weight.grad.float()
    options = {
        "mixed_precision": MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
    }
    weight = model.block.weight
    model.block = FullyShardedDataParallel(model.block, **options)  # type: ignore[assignment]
    whole = FullyShardedDataParallel(model, **options)
    whole(torch.ones(2, 4)).backward()
    with FullyShardedDataParallel.summon_full_params(whole, writeback=False, with_grads=True):
        assert weight.grad is not None
        return weight.grad.clone()


def on_rank(rank: int, folder: str) -> None:
    """Compare with the same model in one process, without a wrapper; all ranks have the same batch."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for dtype, reentrant in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        expected, got = (gradient(sharded, dtype, reentrant) for sharded in (False, True))
        if rank == 0:
            print(f"{dtype}, use_reentrant={reentrant}: expected {expected[0].tolist()}")
            print(f"{dtype}, use_reentrant={reentrant}: got      {got[0].tolist()}", flush=True)
            if not torch.equal(got, expected):
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
