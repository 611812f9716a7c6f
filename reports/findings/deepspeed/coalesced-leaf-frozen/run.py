"""DeepSpeed, stage 3: after coalesce_grad_reduction() the step raises if a leaf module has a frozen parameter."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Block(torch.nn.Module):
    """Two weights, of which the client freezes one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x))


class Model(torch.nn.Module):
    """A layer and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = torch.nn.Linear(4, 4), Block()

    def forward(self) -> torch.Tensor:
        return self.block(self.stem(torch.ones(2, 4))).sum()


def end(leaf: bool, frozen: bool) -> str:
    """The end of a step of two micro-steps: "right", or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    if leaf:
        deepspeed.utils.set_z3_leaf_modules(model, [Block])
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    model.block.one.requires_grad_(not frozen)
    try:
        with engine.coalesce_grad_reduction():
            for _ in range(2):
                engine.set_gradient_accumulation_boundary(False)
                engine.backward(engine())
        engine.set_gradient_accumulation_boundary(True)
        engine.step()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "right"


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for leaf in (False, True):
            for frozen in (False, True):
                found = end(leaf, frozen)
                print(f"{leaf=}, {frozen=}: {found}")
                wrong |= found != "right"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
