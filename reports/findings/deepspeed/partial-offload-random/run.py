"""DeepSpeed, stage 3: to build an engine that offloads a part of the optimizer draws one of torch's random numbers."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


def draws(ratio: float) -> bool:
    """Whether ``initialize`` changes the state of torch's generator."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": ratio}},
    }
    model = torch.nn.Linear(4, 4)
    before = torch.get_rng_state()
    deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return not torch.equal(before, torch.get_rng_state())


def main() -> int:
    """1 if an engine draws a random number."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        found = {ratio: draws(ratio) for ratio in (1.0, 0.5)}
        dist.destroy_process_group()
    for ratio, drawn in found.items():
        print(f"offload_optimizer.ratio {ratio}: initialize() {'draws a' if drawn else 'draws no'} random number")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
