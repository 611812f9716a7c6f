"""DeepSpeed, stage 3: save_16bit_model leaves out the second name of a module that the model has at two places."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def model() -> torch.nn.Module:
    """A layer that runs twice."""
    layer = torch.nn.Linear(4, 4)
    return torch.nn.Sequential(layer, torch.nn.Tanh(), layer)


def load(stage: int, folder: str) -> str:
    """What a plain model does with the weights that an engine has saved."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    trained = model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
    }
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.5)
    engine, *_ = deepspeed.initialize(model=trained, optimizer=optimizer, config=config)
    engine.save_16bit_model(folder, f"stage{stage}.bin")
    state = torch.load(Path(folder, f"stage{stage}.bin"), weights_only=True)
    try:
        model().load_state_dict(state)
    except RuntimeError as error:
        return str(error)
    return "loaded"


def main() -> int:
    """Save and load at each stage, in one process; 1 if the weights of a stage do not load."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {stage: load(stage, folder) for stage in range(4)}
        dist.destroy_process_group()
    for stage, got in found.items():
        print(f"stage {stage}: {got}")
    return int(any(got != "loaded" for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
