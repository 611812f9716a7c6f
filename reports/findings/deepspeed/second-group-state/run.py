"""DeepSpeed stages 1 and 2: safe_get_full_optimizer_state fails for parameters of the second group."""

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
    """The loss is the sum of all elements."""

    def __init__(self, *values: torch.Tensor) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(values)

    def forward(self) -> torch.Tensor:
        return sum(p.sum() for p in self.weights)


def read(stage: int) -> list[str]:
    """By group: Adam's first moment of its one parameter, whose gradient is 1, after one step; or the exception."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(torch.zeros(8), torch.zeros(8))
    groups = [{"params": [model.weights[0]]}, {"params": [model.weights[1]], "lr": 0.5}]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.Adam(groups, lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    engine.step()
    found = []
    for p in model.parameters():
        try:
            value = deepspeed.utils.safe_get_full_optimizer_state(p, "exp_avg")
            found.append(str(value if value is None else value.tolist()))
        except Exception as error:  # noqa: BLE001 - the exception is the finding
            found.append(f"{type(error).__name__}: {error}")
    return found


def on_rank(rank: int, folder: str) -> None:
    """Read at every stage; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {stage: read(stage) for stage in (1, 2, 3)}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if a state cannot be read or is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    wrong = False
    for stage, groups in found.items():
        for group, got in enumerate(groups):
            print(f"stage {stage}, group {group}: expected eight times 0.1, got {got}")
            wrong |= not got.startswith("[0.1")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
