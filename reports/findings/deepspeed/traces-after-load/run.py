"""DeepSpeed stage 3: after a load, training raises if small weights are used without their layer, and read."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The forward uses a layer's weight without calling the layer, between two layers that it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.used = torch.nn.Linear(2, 2, bias=False)

    def forward(self) -> torch.Tensor:
        used = torch.nn.functional.linear(self.first(torch.ones(1, 2)), self.used.weight)
        last: torch.Tensor = self.last(used)
        return last.sum()


def engine() -> Any:
    """Stage 3, whose persistence threshold is DeepSpeed's default: all layers stay whole."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3},
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)[0]


def train(trained: Any, reads: bool) -> None:
    """Three steps; the client may read the weights after each."""
    import deepspeed

    for _ in range(3):
        trained.backward(trained())
        trained.step()
        with deepspeed.zero.GatheredParameters(list(trained.module.parameters()), enabled=reads):
            pass


def outcome(call: Callable[[], object]) -> str:
    """The error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is printed
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "no error"


def main() -> int:
    """1 if training raises after a load."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        first = engine()
        found = {"without a load, with readings": outcome(lambda: train(first, reads=True))}
        first.save_checkpoint(str(Path(folder, "saved")))
        for reads in (False, True):
            other = engine()
            other.load_checkpoint(str(Path(folder, "saved")))
            when = f"after a load, {'with' if reads else 'without'} readings"
            found[when] = outcome(lambda: train(other, reads))  # noqa: B023 - it is called at once
        dist.destroy_process_group()
    for when, error in found.items():
        print(f"{when}: expected no error, got {error}")
    return int(any(error != "no error" for error in found.values()))


if __name__ == "__main__":
    sys.exit(main())
