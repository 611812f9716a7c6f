"""DeepSpeed stages 2 and 3: the backward fails if a forward calls a layer twice under reentrant checkpointing."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    """Two calls of one layer, each recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.constant_(self.layer.weight, 0.5)

    def forward(self, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=reentrant)
        return x.sum()


def train(stage: int, reentrant: bool) -> str:
    """The weight's first element after one step of SGD, or the exception."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    try:
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        engine.backward(engine(torch.ones(1, 4, requires_grad=True), reentrant))
        engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            return str(float(model.layer.weight.flatten()[0]))
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__} {error}".strip()


def main() -> int:
    """1 if a weight is wrong."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    model = Model()
    model(torch.ones(1, 4), False).backward()
    expected = str(float((model.layer.weight - 0.25 * model.layer.weight.grad).flatten()[0]))
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1, 2, 3):
            for reentrant in (False, True):
                got = train(stage, reentrant)
                print(f"stage {stage}, use_reentrant={reentrant}: expected {expected}, got {got}")
                wrong |= got != expected
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
