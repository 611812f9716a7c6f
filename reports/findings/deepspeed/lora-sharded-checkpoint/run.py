"""DeepSpeed: a checkpoint of an OptimizedLinear with base_weight_sharding has one rank's shard, and does not load."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def build() -> Any:
    """An engine of stage 1 whose base weight of 16 elements is sharded over the ranks."""
    import deepspeed
    from deepspeed.linear import LoRAConfig, OptimizedLinear

    config = LoRAConfig(lora_r=2, base_weight_sharding=2)
    layer = OptimizedLinear(4, 4, lora_config=config, dtype=torch.float32)
    model = torch.nn.Sequential(OrderedDict({"q_proj": layer}))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    keys = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 1},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=keys)
    return engine


def run(rank: int, folder: str) -> None:
    """Exit with 1 if the load raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.init_distributed("gloo")
    build().save_checkpoint(folder, tag="tag")
    saved = torch.load(f"{folder}/tag/mp_rank_00_model_states.pt", weights_only=False)["module"]["q_proj.weight"]
    engine, error = build(), ""
    try:
        engine.module.load_state_dict({**engine.module.state_dict(), "q_proj.weight": saved})
    except RuntimeError as raised:
        error = str(raised).splitlines()[-1].strip()
    found = f"{saved.numel()}; the load raises: {error}" if error else str(saved.numel())
    print(f"rank {rank}: expected 16 elements of the base weight in the checkpoint, got {found}")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(int(bool(error)))


def main() -> int:
    """1 if a rank cannot load the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


if __name__ == "__main__":
    sys.exit(main())
