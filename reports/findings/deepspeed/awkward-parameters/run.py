"""DeepSpeed: a 0-dimensional parameter, one that is not contiguous, or one with no element makes training raise."""

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
PARAMETERS = {
    "of 0 dimensions": torch.tensor(1.0),
    "not contiguous": torch.ones(3, 2).t(),
    "with no element": torch.zeros(0),
}


class Model(torch.nn.Module):
    """The loss is the sum of all elements."""

    def __init__(self, *values: torch.Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(values)

    def forward(self) -> torch.Tensor:
        return sum(p.sum() for p in self.weights)


def train(stage: int, awkward: torch.Tensor) -> str:
    """One step of Adam, then a read of its state: the exception, or nothing."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(torch.zeros(8), awkward.clone(memory_format=torch.preserve_format))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    try:
        optimizer = torch.optim.Adam(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        engine.backward(engine())
        engine.step()
        if stage:
            deepspeed.utils.safe_get_full_optimizer_state(model.weights[1], "exp_avg")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__}: {error}"[:120]
    return "nothing"


def on_rank(rank: int, folder: str) -> None:
    """Train at every stage; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [[stage, what, train(stage, value)] for stage in range(4) for what, value in PARAMETERS.items()]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if anything raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    for stage, what, raised in found:
        print(f"stage {stage}, a parameter {what}: expected no exception, raised {raised}")
    return int(any(raised != "nothing" for *_, raised in found))


if __name__ == "__main__":
    sys.exit(main())
