"""DeepSpeed, stage 1: zero_to_fp32 leaves frozen parameters out, and load_state_dict_from_zero_checkpoint is silent.

The frozen weight is 1 when it is saved. A model whose weights are 0 loads the checkpoint, so that it must be 1 again.
At stages 1 and 2 the model also has a parameter without elements, which is left out as well.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


def model_of(value: float, empty: bool) -> torch.nn.Sequential:
    """Two layers of weights with one value, of which the first is frozen, and perhaps an empty parameter."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    for weight in model.parameters():
        torch.nn.init.constant_(weight, value)
    model[0].weight.requires_grad_(False)
    if empty:
        model[1].register_parameter("empty", torch.nn.Parameter(torch.zeros(0)))
    return model


def saved(stage: int, folder: str) -> None:
    """Train for a step and save."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = model_of(1.0, stage < 3)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.5)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    engine.save_checkpoint(folder)


def loaded(stage: int, folder: str) -> tuple[list[str], float]:
    """The names in the consolidated state, and the frozen weight of a model that loads it."""
    from deepspeed.utils.zero_to_fp32 import (
        get_fp32_state_dict_from_zero_checkpoint,
        load_state_dict_from_zero_checkpoint,
    )

    with contextlib.redirect_stdout(io.StringIO()):
        names = sorted(get_fp32_state_dict_from_zero_checkpoint(folder))
        model = load_state_dict_from_zero_checkpoint(model_of(0.0, stage < 3), folder)
    return names, float(model[0].weight[0, 0])


def main() -> int:
    """Save and consolidate at stages 1 to 3, in one process; 1 if a frozen weight is lost."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            saved(stage, f"{folder}/{stage}")
            found[stage] = loaded(stage, f"{folder}/{stage}")
    for stage, (names, value) in found.items():
        print(f"stage {stage}: names {names}; expected the frozen weight 1.0, got {value}")
    return int(any(value != 1.0 for _, value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
