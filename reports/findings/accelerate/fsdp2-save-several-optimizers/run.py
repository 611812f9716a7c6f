"""Accelerate with FSDP2: save_state() raises if one model has several optimizers.

Accelerate drives FSDP2 on accelerators alone; on a CPU this check is all that is in the way, so the program sets the
state that it leaves behind. One rank is enough.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType


def accelerator() -> Accelerator:
    """Accelerate with FSDP2."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False)
    made = Accelerator(cpu=True, fsdp_plugin=plugin)
    made.state.distributed_type, made.state.fsdp_plugin = DistributedType.FSDP, plugin
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    return made


def outcome(groups: int, directory: Path) -> str:
    """The outcome of save_state() with an optimizer for each of so many layers."""
    driver = accelerator()
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    split = [[*model.parameters()]] if groups == 1 else [[*layer.parameters()] for layer in model]
    module, *optimizers = driver.prepare(model, *(torch.optim.SGD(group, lr=0.1, momentum=0.5) for group in split))
    driver.backward(module(torch.ones(1, 1)).sum())
    for optimizer in optimizers:
        optimizer.step()
    try:
        driver.save_state(str(directory))
    except IndexError as error:
        return f"IndexError: {error}"
    return "no error"


def main() -> int:
    """1 if a save raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {groups: outcome(groups, Path(folder, str(groups))) for groups in (1, 2)}
        for groups, got in found.items():
            print(f"save_state() with {groups} optimizer(s): expected no error, got {got}")
        dist.destroy_process_group()
    return int(any(got != "no error" for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
