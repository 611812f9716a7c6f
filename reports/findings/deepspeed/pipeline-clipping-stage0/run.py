"""DeepSpeed's pipelines in fp32 without ZeRO: gradients are clipped by the norm of the first stage of the pipeline.

Two ranks have one layer each. The second layer has most of the norm.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 0.1


def batches(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One batch after the other."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(8, 4, generator=generator).to(dtype), torch.zeros(8, 4)


def step_norm(stage: int, dtype: torch.dtype) -> float:
    """The norm over both stages of the pipeline of a step with a rate of one."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(0)
    first, second = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
    torch.nn.init.constant_(second.weight, 0.01)  # so that the first layer's gradient is small
    model: Any = PipelineModule(
        layers=[first, second],
        num_stages=2,
        loss_fn=lambda output, target: (output.float() - target).sub(1.0).square().sum(),
        partition_method="uniform",
    )
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": LIMIT,
        "bf16": {"enabled": dtype == torch.bfloat16},
    }
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, optimizer=optimizer, config=config)
    before = [p.detach().double().clone() for p in parameters]
    engine.train_batch(batches(dtype))
    moves = zip(parameters, before, strict=True)
    square = torch.stack([(p.detach().double() - old).square().sum() for p, old in moves]).sum()
    dist.all_reduce(square)
    return float(square) ** 0.5


def run(rank: int, folder: str) -> None:
    """Exit with 1 if a step is longer than the limit."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    deepspeed.init_distributed("gloo")
    wrong, said = False, []
    for dtype in (torch.float32, torch.bfloat16):
        for stage in (0, 1):
            found = step_norm(stage, dtype)
            wrong = wrong or found > 1.05 * LIMIT
            said.append(f"{dtype}, stage {stage}: expected a clipped norm of {LIMIT}, got {found:.3f}")
    dist.destroy_process_group()
    if rank == 0:
        print(*said, sep="\n")
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
