"""FSDP1: a parameter that the loss does not use gets a gradient of zeros, and weight decay moves it.

DDP leaves its gradient None, and torch.optim then leaves the parameter alone.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    """The loss uses one of two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Parameter(torch.ones(4))
        self.unused = torch.nn.Parameter(torch.ones(4))

    def forward(self) -> torch.Tensor:
        return self.used.sum()


def train(engine: str) -> str:
    """The unused weight's gradient and its value after one step with weight decay."""
    model = Model()
    if engine == "DDP":
        module: torch.nn.Module = DistributedDataParallel(model, find_unused_parameters=True)
    elif engine == "FSDP1":
        module = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        module = fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25, weight_decay=0.5)
    module().backward()
    gradient = "None" if model.unused.grad is None else "zeros"
    optimizer.step()
    weight = model.unused.full_tensor() if engine == "FSDP2" else model.unused
    return f"gradient {gradient}, weight {float(weight[0])}"


def main() -> int:
    """1 if FSDP1's weight is not DDP's."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {engine: train(engine) for engine in ("DDP", "FSDP2", "FSDP1")}
        dist.destroy_process_group()
    for engine, told in found.items():
        print(f"{engine}: {told}")
    return int(found["FSDP1"] != found["DDP"])


if __name__ == "__main__":
    sys.exit(main())
