"""DeepSpeed's ZenFlow at stages 1 and 2: initialize moves the elements of each matrix to other places."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from typing import Any

import torch


def weight(stage: int, zenflow: bool) -> list[list[float]]:
    """The weight [[0, 1, 2, 3], [4, 5, 6, 7]] after initialize."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    layer = torch.nn.Linear(4, 2, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(8).view(2, 4))
    options = {"select_strategy": "step", "select_interval": 1, "update_interval": 1}
    zero: dict[str, Any] = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": zero | ({"zenflow": options} if zenflow else {}),
    }
    engine, *_ = deepspeed.initialize(model=layer, model_parameters=list(layer.parameters()), config=config)
    found: list[list[float]] = layer.weight.detach().float().tolist()
    engine.destroy()
    return found


def main() -> int:
    """1 if a weight has changed."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    torch.distributed.init_process_group("gloo")
    right, wrong = torch.arange(8.0).view(2, 4).tolist(), False
    for stage in (1, 2):
        for zenflow in (False, True):
            found = weight(stage, zenflow)
            name = "with ZenFlow" if zenflow else "without ZenFlow"
            print(f"stage {stage} {name}: expected {right}, got {found}")
            wrong = wrong or found != right
    torch.distributed.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
