"""DeepSpeed: save_checkpoint raises for the client state that load_checkpoint has returned.

The calls are those of "Model Checkpointing" in https://www.deepspeed.ai/getting-started/.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


def build(stage: int) -> Any:
    """An engine of a small model."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    model = torch.nn.Linear(4, 4)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    return engine


def outcome(stage: int, folder: str) -> str:
    """How a save ends with the loaded client state, in which the client has set its step anew."""
    build(stage).save_checkpoint(folder, client_state={"step": 1})
    engine = build(stage)
    _, client_state = engine.load_checkpoint(folder)
    client_state["step"] += 1
    try:
        engine.save_checkpoint(folder, client_state=client_state)
    except KeyError as error:
        own = sorted(set(client_state) - {"step"})
        return f"KeyError: {error.args[0].split('.')[0]}; beside the client's key it has {', '.join(own)}"
    return "saved"


def main() -> int:
    """1 if a save raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 3):
            end = outcome(stage, f"{folder}/{stage}")
            print(f"stage {stage}: expected saved, got {end}")
            wrong |= end != "saved"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
