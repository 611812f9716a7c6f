"""FSDP2: under autocast, a forward without backward takes the gradients of some modules from the next forward."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


class Model(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)).sum()


def without_gradients(shards: bool, before: str, caches: bool) -> list[str]:
    """The parameters that get no gradient, with shards or without, after a forward of the kind ``before``."""
    torch.manual_seed(0)
    model, x = Model(), torch.ones(2, 4)
    if shards:
        mesh = init_device_mesh("cpu", (RANKS,))
        for module in (model.first, model.last, model):
            fully_shard(module, mesh=mesh)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=caches):
        if before != "no forward":
            with torch.set_grad_enabled(before == "a dropped forward"):
                model(x)
        loss = model(x)
    loss.backward()
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


def on_rank(rank: int, folder: str) -> None:
    """Each combination; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    without, dropped = "a forward without gradients", "a dropped forward"
    plain = [(False, without, True), (False, dropped, True)]
    for shards, before, caches in (
        *plain,
        (True, "no forward", True),
        (True, without, True),
        (True, dropped, True),
        (True, without, False),
    ):
        found = without_gradients(shards, before, caches)
        if rank == 0:
            what = f"{'FSDP2' if shards else 'plain'}, after {before}{'' if caches else ', cache_enabled=False'}"
            print(f"{what}: expected none without a gradient, got {found}")
            if found:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a parameter gets no gradient."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
