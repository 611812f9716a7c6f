"""FSDP2: the step of SGD(fused=True) and Adagrad(fused=True) raises."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OPTIMIZERS = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad


def step_of(rule: type[torch.optim.Optimizer]) -> str:
    """The outcome of a step of a fused optimizer."""
    module = fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
    optimizer = rule(module.parameters(), lr=0.1, fused=True)  # type: ignore[call-arg]
    module(torch.ones(1, 4)).sum().backward()
    try:
        optimizer.step()
    except NotImplementedError as error:
        return f"NotImplementedError: {error}"
    return "an update"


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {rule.__name__: step_of(rule) for rule in OPTIMIZERS}
        dist.destroy_process_group()
    for name, value in found.items():
        print(f"{name}: expected an update, got {value}")
    return int(any(value != "an update" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
