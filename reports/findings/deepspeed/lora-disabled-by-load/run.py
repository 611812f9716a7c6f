"""DeepSpeed: to load its own state turns the LoRA of an OptimizedLinear off, if target_mods does not name the layer."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def build(name: str, stage: int) -> Any:
    """An engine of a model with one layer with LoRA."""
    import deepspeed
    from deepspeed.linear import LoRAConfig, OptimizedLinear

    torch.manual_seed(0)
    layer = OptimizedLinear(4, 4, lora_config=LoRAConfig(lora_r=2), dtype=torch.float32)
    model = torch.nn.Sequential(OrderedDict({name: layer}))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def train(engine: Any) -> float:
    """One step; its loss."""
    loss = engine(torch.ones(1, 4)).sub(1.0).square().mean()
    if loss.requires_grad:
        engine.backward(loss)
        engine.step()
    return float(loss)


def main() -> int:
    """1 if the loss after a load is another one than that without."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for name in ("q_proj", "fc"):
            for stage in (0, 1):
                first = build(name, stage)
                for _ in range(20):
                    train(first)
                first.save_checkpoint(f"{folder}/{name}{stage}")
                second = build(name, stage)
                second.load_checkpoint(f"{folder}/{name}{stage}")
                expected, got = ([round(train(engine), 4) for _ in range(3)] for engine in (first, second))
                wrong = wrong or expected != got
                print(f"{name}, stage {stage}: expected losses after the load {expected}, got {got}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
