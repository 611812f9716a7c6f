"""SGD(fused=True): if a GradScaler leaves the first step out, the momentum is memory that nothing has set."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 200


def momentum_after_overflow(fused: bool) -> str:
    """The momentum after a first step that overflows."""
    used = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(8)]  # memory that another part of a program has used
    del used
    module = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(module(torch.full((1, WIDTH), torch.inf)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    buffers = [state.get("momentum_buffer") for state in optimizer.state.values()]
    return "other values" if any(each is not None and bool((each != 0).any()) for each in buffers) else "none or zeros"


def main() -> int:
    """1 if a skipped step leaves a momentum that is not zero."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {fused: momentum_after_overflow(fused) for fused in (False, True)}
        dist.destroy_process_group()
    for fused, value in found.items():
        print(f"fused={fused}, momentum after a skipped step: expected none or zeros, got {value}")
    return int(any(value != "none or zeros" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
