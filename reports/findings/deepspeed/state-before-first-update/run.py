"""DeepSpeed stages 1 to 3: safe_get_full_optimizer_state fails until the first step that is not skipped.

At stages 1 and 2 it fails again after a load, though the engine then has the states of the checkpoint.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of the weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.sum() * factor


def build(stage: int) -> tuple[Model, Any]:
    """The model and DeepSpeed's engine."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return model, engine


def read(stage: int, folder: str) -> dict[str, str]:
    """By moment: Adam's first moment of the parameter, or the exception."""
    model, engine = build(stage)
    found = {"before the first step": _first_moment(model)}
    for factor, moment in ((float("inf"), "after a skipped step"), (1.0, "after an update")):
        engine.backward(engine(factor))
        engine.step()
        found[moment] = _first_moment(model)
    engine.save_checkpoint(folder, f"stage{stage}")
    model, engine = build(stage)
    engine.load_checkpoint(folder, f"stage{stage}")
    return found | {"after a load": _first_moment(model)}


def _first_moment(model: Model) -> str:
    import deepspeed

    try:
        value = deepspeed.utils.safe_get_full_optimizer_state(model.weight, "exp_avg")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__}: {error}"
    return str(value if value is None else value.tolist())


def main() -> int:
    """1 if a state cannot be read."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            for moment, got in read(stage, folder).items():
                expected = "eight times 0.1" if moment in ("after an update", "after a load") else "None or zeros"
                print(f"stage {stage}, {moment}: expected {expected}, got {got}")
                wrong |= "Error" in got
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
