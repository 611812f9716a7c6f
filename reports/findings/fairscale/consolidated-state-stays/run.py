"""fairscale's OSS: the state that a rank has consolidated stays in memory after it was saved."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
WIDTH, LAYERS = 256, 4


def living() -> int:
    """Bytes of the living tensors."""
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def around_a_save() -> tuple[int, int]:
    """Bytes of living tensors before rank 0 consolidates the state, and after it has dropped the result."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    optimizer = OSS(model.parameters(), optim=torch.optim.Adam)
    wrapped = ShardedDataParallel(model, optimizer)
    wrapped(torch.randn(1, WIDTH)).sum().backward()
    optimizer.step()
    before = living()
    optimizer.consolidate_state_dict(recipient_rank=0)
    state = optimizer.state_dict() if dist.get_rank() == 0 else {}
    del state
    return before, living()


def on_rank(rank: int, folder: str) -> None:
    """Rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = around_a_save()
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Print the bytes; 1 if more are alive after the save."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        before, after = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"bytes of tensors on rank 0 after a save: expected {before}, as before it, got {after}")
    return int(after > before)


if __name__ == "__main__":
    sys.exit(main())
