"""DeepSpeed stage 0: gradients of a model with MoE layers are clipped by a norm that is too small.

One expert on each of two ranks. In fp32 the norm is the mean of those of the ranks; in bf16 it has no expert.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 0.1


class Model(torch.nn.Module):
    """A layer and an MoE layer."""

    def __init__(self) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        torch.manual_seed(0)
        self.stem = torch.nn.Linear(4, 4)
        expert = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.constant_(expert.weight, 0.01)  # so that the experts have most of the norm
        self.moe = MoE(4, expert, num_experts=2, ep_size=2, drop_tokens=False, min_capacity=0, use_rts=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.moe(self.stem(x))[0]
        return output.float().sub(1.0).square().sum()


def norms(rank: int, stage: int, dtype: torch.dtype) -> tuple[float, Any]:
    """That of a step with a rate of one, with each parameter once, and that which the engine says."""
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    model = Model()
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": LIMIT,
        "bf16": {"enabled": dtype == torch.bfloat16},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(groups, lr=1.0), config=config)
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))
    engine.backward(engine(x.to(dtype)))
    engine.step()
    squares = {name: (p.detach().double() - before[name]).square().sum() for name, p in model.named_parameters()}
    experts = torch.stack([square for name, square in squares.items() if "experts" in name]).sum()
    dist.all_reduce(experts)
    whole = sum(square for name, square in squares.items() if "experts" not in name) + experts
    return float(whole) ** 0.5, engine.get_global_grad_norm()


def run(rank: int, folder: str) -> None:
    """Exit with 1 if a step is longer than the limit."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    wrong = False
    for dtype in (torch.float32, torch.bfloat16):
        for stage in (0, 1):
            found, told = norms(rank, stage, dtype)
            wrong = wrong or found > 1.05 * LIMIT
            if rank == 0:
                said = "" if told is None else f"; get_global_grad_norm() {float(told):.2f}"
                print(f"{dtype}, stage {stage}: expected a clipped norm of {LIMIT}, got {found:.3f}{said}")
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.exit(int(wrong))


def main() -> int:
    """1 if a step is longer than the limit."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


if __name__ == "__main__":
    sys.exit(main())
