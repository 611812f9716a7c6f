"""DeepSpeed stage 3: of two backwards without a forward between them, the first one's gradients are lost.

The first backward has a gradient of 1, and the second one has 3.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the weight times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.sum() * factor


def train(stage: int, order: str) -> float:
    """The change of the weight in a step with a learning rate of 1."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "managed_gradient_accumulation": False,  # the caller may call backward() as often as he likes before step()
        "zero_optimization": {"stage": stage, "overlap_comm": False},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    if order == "one after the other":
        engine.backward(engine(1.0))
        engine.backward(engine(3.0))
    elif order == "both forwards first":
        losses = engine(1.0), engine(3.0)
        for loss in losses:
            engine.backward(loss)
    else:
        loss = engine(1.0)
        engine.backward(loss, retain_graph=True)
        engine.backward(3 * loss)
    engine.step()
    with deepspeed.zero.GatheredParameters(model.weight, enabled=stage == 3):
        return -float(model.weight)


def main() -> int:
    """1 if a gradient is lost."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1, 2, 3):
            for order in ("one after the other", "both forwards first", "one forward"):
                got = train(stage, order)
                print(f"stage {stage}, {order}: expected 4.0, got {got}")
                wrong |= got != 4.0
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
