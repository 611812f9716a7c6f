"""DeepSpeed stages 1 and 2 with CPU offload: a parameter that rests in a step is updated with its earlier gradient.

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
#: Whether each step uses ``rare``.
USES = [True, False, False]


class Model(torch.nn.Module):
    """The loss is a sum of weights, so that each gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rare = (torch.nn.Parameter(torch.zeros(8)) for _ in range(2))

    def forward(self, used: bool) -> torch.Tensor:
        return (self.always + self.rare if used else self.always).sum()


def train(stage: int, device: str) -> list[float]:
    """How far ``rare`` moves in each step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": device}},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    moves, before = [], 0.0
    for used in USES:
        engine.backward(engine(used))
        engine.step()
        after = float(model.rare[0])
        moves.append(after - before)
        before = after
    return moves


def on_rank(rank: int, folder: str) -> None:
    """Train at stages 1 and 2, with and without offload; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [[stage, device, train(stage, device)] for stage in (1, 2) for device in ("none", "cpu")]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    expected = [-float(used) + 0.0 for used in USES]
    for stage, device, moves in found:
        print(f"stage {stage}, offload_optimizer {device}: expected {expected}, got {moves}")
    return int(any(moves != expected for *_, moves in found))


if __name__ == "__main__":
    sys.exit(main())
