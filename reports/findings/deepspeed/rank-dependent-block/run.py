"""DeepSpeed stages 1 to 3: if only some ranks use a block, the ranks hang or die; stage 0 trains."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
#: Seconds; the step takes less than one.
LIMIT = 60


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


def on_rank(rank: int, stage: int, folder: str) -> None:
    """One step; only rank 0 uses ``rare``."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{stage}", rank=rank, world_size=RANKS)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.zeros(8), rank == 0))
    engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        moved = float(model.rare.weight[0])
    if rank == 0:
        Path(folder, f"moved{stage}").write_text(f"moved by {moved:g}", encoding="utf-8")


def outcome(stage: int, folder: str) -> str:
    """How far ``rare`` moved, or how the ranks ended."""
    ranks = mp.spawn(on_rank, (stage, folder), nprocs=RANKS, join=False)
    end = time.monotonic() + LIMIT
    try:
        while time.monotonic() < end:
            if ranks.join(timeout=1):
                return Path(folder, f"moved{stage}").read_text(encoding="utf-8")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"died: {str(error).strip().splitlines()[-1][:150]}"
    for process in ranks.processes:
        process.kill()
    return f"hung for {LIMIT} s"


def main() -> int:
    """1 if the ranks of a stage hang or die."""
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for stage in range(4):
            got = outcome(stage, folder)
            print(f"stage {stage}: expected moved by -0.5, got {got}", flush=True)
            wrong |= got != "moved by -0.5"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
