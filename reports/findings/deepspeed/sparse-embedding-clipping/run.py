"""DeepSpeed, stage 0: the gradients of an embedding with sparse=True are not clipped.

Both ranks look up the first row of the embedding. The loss is the sum of its elements, so that their gradients are 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class Model(torch.nn.Module):
    """One row of the embedding has a gradient."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 16, sparse=sparse)

    def forward(self) -> torch.Tensor:
        found: torch.Tensor = self.embedding(torch.tensor([0])).sum()
        return found


def move(sparse: bool, dtype: str) -> float:
    """How far one step moves the elements of the row."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(sparse)
    torch.nn.init.zeros_(model.embedding.weight)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": dtype == "bf16"}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    engine.backward(engine())
    engine.step()
    return round(model.embedding.weight[0, 0].item(), 3)


def on_rank(rank: int, folder: str) -> None:
    """Clip a dense and a sparse gradient; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {f"sparse={sparse}, {dtype}": move(sparse, dtype) for sparse in (False, True) for dtype in ("fp32", "bf16")}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if a gradient of norm 4 is not clipped to 1: the 16 elements of the row move by -0.25."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"{RANKS} ranks; expected everywhere: the row moves by -0.25")
    for which, moved in found.items():
        print(f"{which}: moved by {moved}")
    return int(any(moved != -0.25 for moved in found.values()))


if __name__ == "__main__":
    sys.exit(main())
