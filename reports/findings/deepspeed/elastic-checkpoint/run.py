"""DeepSpeed stages 1 and 2: a checkpoint with elastic_checkpoint is saved, and does not load."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def outcome(stage: int, elastic: bool, folder: str) -> str:
    """What a load of a saved checkpoint gives."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "elastic_checkpoint": elastic},
    }
    engines = []
    for _ in range(2):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        engines.append(deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0])
    saved, loads = engines
    saved.backward(saved(torch.ones(1, 4)).sum())
    saved.step()
    saved.save_checkpoint(folder)
    try:
        loads.load_checkpoint(folder)
    except AssertionError as error:
        return type(error).__name__
    return "loaded"


def main() -> int:
    """1 if a load raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        cases = [(stage, elastic) for stage in (1, 2) for elastic in (False, True)]
        found = {case: outcome(*case, str(Path(folder, str(case)))) for case in cases}
        dist.destroy_process_group()
    for (stage, elastic), value in found.items():
        print(f"stage {stage}, elastic_checkpoint {'on' if elastic else 'off'}: expected loaded, got {value}")
    return int(any(value != "loaded" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
