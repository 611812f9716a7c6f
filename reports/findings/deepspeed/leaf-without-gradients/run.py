"""DeepSpeed stage 3: the backward raises if a leaf module's input needs no gradient."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


class Block(torch.nn.Module):
    """Two linears."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class Model(torch.nn.Module):
    """A block whose input is the batch, or the output of a linear."""

    def __init__(self, stem: bool) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(4, 4) if stem else torch.nn.Identity()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.stem(x)).sum()


def step(stem: bool, leaf: bool) -> str:
    """What a step does."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(stem)
    if leaf:
        deepspeed.utils.set_z3_leaf_modules(model, [Block])
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters()), config=config)
    try:
        engine.backward(engine(torch.ones(2, 4)))
        engine.step()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "trains"


def main() -> int:
    """1 if a backward raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stem in (True, False):
            for leaf in (False, True):
                got = step(stem, leaf)
                print(f"the input needs a gradient: {stem}, a leaf module: {leaf}: {got}")
                wrong |= got != "trains"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
