"""DeepSpeed stages 1 to 3: after two forwards, loss.backward() of both does not reduce, and step() raises."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of the weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.sum() * factor


def outcome(stage: int, direct: bool) -> str:
    """The weight after a step on the sum of two losses, or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    loss = engine(1.0) + engine(2.0)
    try:
        if direct:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
    except KeyError as error:
        return f"{type(error).__name__}: {error}"
    with deepspeed.zero.GatheredParameters([model.weight], enabled=stage == 3):
        return str(float(model.weight[0]))


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {(stage, direct): outcome(stage, direct) for stage in (1, 2, 3) for direct in (False, True)}
        dist.destroy_process_group()
    for (stage, direct), value in found.items():
        print(f"stage {stage}, {'loss.backward()' if direct else 'engine.backward(loss)'}: expected -3.0, got {value}")
    return int(any(value != "-3.0" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
