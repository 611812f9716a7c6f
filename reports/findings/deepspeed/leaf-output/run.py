"""DeepSpeed stage 3: a step raises if a leaf module returns a dict."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


class Block(torch.nn.Module):
    """A layer that returns its output as it is, in a tuple or in a dict."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = torch.nn.Linear(4, 4), form

    def forward(self, x: torch.Tensor) -> object:
        found = self.layer(x)
        return {"tensor": found, "tuple": (found,), "dict": {"found": found}}[self.form]


class Model(torch.nn.Module):
    """A layer and a block."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.first, self.block = torch.nn.Linear(4, 4), Block(form)

    def forward(self) -> torch.Tensor:
        found = self.block(self.first(torch.ones(1, 4)))
        return (found["found"] if isinstance(found, dict) else found[0]).sum()


def outcome(leaf: bool, form: str) -> str:
    """Whether a step ends, or its error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(form)
    if leaf:
        deepspeed.utils.set_z3_leaf_modules(model, [Block])
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    kept = any(p.grad is not None for p in model.block.parameters())
    try:
        engine.step()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}; {'gradients are not reduced' if kept else ''}"
    return "a step"


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {(leaf, form): outcome(leaf, form) for leaf in (False, True) for form in ("tensor", "tuple", "dict")}
        dist.destroy_process_group()
    for (leaf, form), value in found.items():
        print(f"{'a leaf' if leaf else 'no leaf'} that returns a {form}: expected a step, got {value}")
    return int(any(value != "a step" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
