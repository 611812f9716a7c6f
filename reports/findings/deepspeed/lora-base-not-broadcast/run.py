"""DeepSpeed: initialize does not broadcast the base weight of an OptimizedLinear with LoRA, which is not sharded.

Each rank has built the model with a seed of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def difference(value: torch.Tensor) -> float:
    """The largest one between rank 0 and rank 1."""
    values = [torch.empty_like(value) for _ in range(2)]
    dist.all_gather(values, value.detach().contiguous())
    return float((values[0] - values[1]).abs().max())


def run(rank: int, folder: str) -> None:
    """Exit with 1 if the ranks have unlike base weights."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    from deepspeed.linear import LoRAConfig, OptimizedLinear

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    wrong = False
    for stage in (0, 1, 2, 3):
        torch.manual_seed(rank)
        layer = OptimizedLinear(4, 4, lora_config=LoRAConfig(lora_r=2), dtype=torch.float32)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), layer)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        }
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            differences = {name: difference(p) for name, p in model.named_parameters()}
        output = difference(engine(torch.ones(1, 4)))
        wrong = wrong or output > 0
        if rank == 0:
            unlike = {name: round(by, 3) for name, by in differences.items() if by}
            print(f"stage {stage}: parameters that differ between the ranks {unlike}, outputs by {output:.3f}")
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.exit(int(wrong))


def main() -> int:
    """1 if ranks train different models."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


if __name__ == "__main__":
    sys.exit(main())
