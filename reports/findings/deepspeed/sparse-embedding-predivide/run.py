"""DeepSpeed, stage 0: with gradient_predivide_factor the gradients of an embedding with sparse=True are too large.

The loss is the sum of a row, so that the gradients of its elements are 1 on every rank, and SGD must move it by -1.
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
        self.embedding = torch.nn.Embedding(4, 8, sparse=sparse)

    def forward(self) -> torch.Tensor:
        found: torch.Tensor = self.embedding(torch.tensor([0])).sum()
        return found


def move(sparse: bool, factor: float) -> float:
    """How far one step moves the row."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(sparse)
    before = model.embedding.weight[0, 0].item()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "gradient_predivide_factor": factor,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    engine.backward(engine())
    engine.step()
    return round(model.embedding.weight[0, 0].item() - before, 3)


def on_rank(rank: int, folder: str) -> None:
    """Take one step with each factor; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {f"sparse={sparse}, factor {f}": move(sparse, f) for sparse in (False, True) for f in (1.0, 2.0, 4.0)}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is not -1."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"{RANKS} ranks; expected everywhere: the row moves by -1")
    for which, moved in found.items():
        print(f"{which}: moved by {moved}")
    return int(any(moved != -1 for moved in found.values()))


if __name__ == "__main__":
    sys.exit(main())
