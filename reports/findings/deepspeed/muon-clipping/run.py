"""DeepSpeed: with Muon stages 1 to 3 clip the orthogonal updates, and not the gradients as stage 0 does."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from typing import Any

import torch

#: The default of gradient_clipping, and one that clips nothing.
LIMITS = 1.0, 0.0


def moved(stage: int, clipping: float) -> float:
    """The norm of a step of two matrices whose gradients are far smaller than the limit."""
    import deepspeed

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": clipping,
        "optimizer": {"type": "Muon", "params": {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.0}},
        "zero_optimization": {"stage": stage, "reduce_scatter": False},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    engine.backward(1e-3 * engine(torch.eye(8)).square().sum())
    engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
    engine.destroy()
    return round(float((after - before).norm()), 3)


def main() -> int:
    """1 if stages differ."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    torch.distributed.init_process_group("gloo")
    wrong = False
    for clipping in LIMITS:
        found = [moved(stage, clipping) for stage in range(4)]
        print(f"gradient_clipping={clipping}: stages 0 to 3 move by {found}")
        wrong = wrong or max(found) - min(found) > 0.01 * max(found)
    torch.distributed.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
