"""DeepSpeed stage 3: a parameter that no rank uses in a step is updated with its gradient of an earlier step.

The gradient of ``rare`` is 1 if it is used and 0 otherwise; plain SGD with lr 1. All ranks do the same.
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
#: By step: whether each micro-step uses ``rare``.
USES = {1: [[True], [False], [False]], 2: [[True, True], [False, False], [False, True]]}


class Block(torch.nn.Module):
    """Adds its weight to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


class Model(torch.nn.Module):
    """The loss is a sum of weights, so that each gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rare = Block(), Block()

    def forward(self, x: torch.Tensor, used: bool) -> torch.Tensor:
        x = self.always(x)
        return (self.rare(x) if used else x).sum()


def train(stage: int, accumulation: int) -> list[float]:
    """How far ``rare`` moves in each step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first

    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    moves, before = [], 0.0
    for micro_steps in USES[accumulation]:
        for used in micro_steps:
            engine.backward(engine(torch.zeros(8), used))
            engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            after = float(model.rare.weight[0])
        moves.append(after - before)
        before = after
    return moves


def on_rank(rank: int, folder: str) -> None:
    """Train at every stage; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [[stage, a, train(stage, a)] for stage in range(4) for a in USES]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    wrong = 0
    for stage, a, moves in found:
        expected = [-sum(step) / a + 0.0 for step in USES[a]]
        wrong += moves != expected
        print(f"stage {stage}, accumulation {a}: expected {expected}, got {moves}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
