"""Accelerate: with find_unused_parameters or static_graph the backward in trigger_sync_in_backward raises.

Two ranks and a model that uses all of its parameters; two forwards in no_sync, as in the example of the documentation.
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator, DistributedDataParallelKwargs

WORLD = 2
CASES: dict[str, dict[str, bool]] = {
    "default": {},
    "find_unused_parameters=True": {"find_unused_parameters": True},
    "static_graph=True": {"static_graph": True},
}


def train(rank: int, folder: str, case: str) -> None:
    """Two forwards without a reduction, which the backward of the second one has."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**CASES[case])])
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    with accelerator.no_sync(model):
        first, second = (model(torch.full((1, 2), float(rank + times))).sum() for times in (0, 1))
        accelerator.backward(first)
        with accelerator.trigger_sync_in_backward(model):
            accelerator.backward(second)
    dist.destroy_process_group()


def main() -> int:
    """1 if the backward raises with an argument of DDP, and not without."""
    raised = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                mp.spawn(train, (folder, case), nprocs=WORLD)
                raised[case] = ""
            except mp.ProcessRaisedException as error:
                lines = [line for line in str(error).splitlines() if "Error:" in line]
                raised[case] = f"raised {lines[-1][:100]}"
        print(f"{case}: {raised[case] or 'reduced'}")
    return int(not raised["default"] and any(raised.values()))


if __name__ == "__main__":
    sys.exit(main())
