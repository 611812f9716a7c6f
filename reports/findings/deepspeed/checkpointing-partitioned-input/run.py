"""DeepSpeed: with partition_activations, deepspeed.checkpointing.checkpoint replaces the values of its input, which
the code around it may use."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> int:
    """Print a residual block's output and gradient, and a batch after an evaluation; 1 if partitioning changes one."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    checkpoint = deepspeed.checkpointing.checkpoint
    block = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.constant_(block.weight, 3.0)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        deepspeed.init_distributed("gloo", verbose=False)
        for partitioned in (False, True):
            deepspeed.checkpointing.configure(None, partition_activations=partitioned)
            x = torch.ones(1, 2, requires_grad=True)
            hidden = x * 1.0
            output = hidden + checkpoint(block, hidden)  # 1 + 6
            output.square().sum().backward()  # 2 * 7 * (1 + 6)
            batch = torch.ones(1, 2)
            with torch.no_grad():
                checkpoint(block, batch)
            gradient = [] if x.grad is None else x.grad.tolist()
            shape = list(batch.shape)
            found.append((output.tolist(), gradient, shape))
            print(f"{partitioned=}: output {output.tolist()}, gradient of x {gradient}, evaluated batch {shape}")
        dist.destroy_process_group()
    return int(found[0] != found[1])


if __name__ == "__main__":
    sys.exit(main())
