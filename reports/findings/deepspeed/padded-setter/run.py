"""DeepSpeed stage 3: the setters of whole values raise for a parameter that the ranks cannot share evenly."""

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
    """The loss is the sum of the weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def assign(size: int) -> dict[str, str]:
    """What each setter does between a backward and its step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(size)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.Adam(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    engine.step()
    engine.backward(engine())
    ones, found = torch.ones(size), {}
    setters = {
        "safe_set_full_grad": lambda: deepspeed.utils.safe_set_full_grad(model.weight, ones),
        "safe_set_full_fp32_param": lambda: deepspeed.utils.safe_set_full_fp32_param(model.weight, ones),
        "safe_set_full_optimizer_state": lambda: deepspeed.utils.safe_set_full_optimizer_state(
            model.weight, ones, "exp_avg"
        ),
        "safe_update_full_grad_vectorized": lambda: deepspeed.utils.safe_update_full_grad_vectorized(
            [model.weight], lambda *_: ones
        ),
    }
    for name, setter in setters.items():
        try:
            setter()
            found[name] = "sets"
        except RuntimeError as error:
            found[name] = f"RuntimeError: {error}"
    return found


def on_rank(rank: int, folder: str) -> None:
    """Use each setter on a parameter of eight elements, and of five."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    Path(folder, str(rank)).write_text(json.dumps({size: assign(size) for size in (8, 5)}), encoding="utf-8")


def main() -> int:
    """1 if a setter raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        by_rank = [json.loads(Path(folder, str(rank)).read_text(encoding="utf-8")) for rank in range(RANKS)]
    wrong = False
    for rank, found in enumerate(by_rank):
        for size, setters in found.items():
            for name, got in setters.items():
                print(f"rank {rank}, {size} elements, {name}: {got}")
                wrong |= got != "sets"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
