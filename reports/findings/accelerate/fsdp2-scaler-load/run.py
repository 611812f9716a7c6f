"""Accelerate with FSDP2 and fp16: load_state() moves the loss scale that it loads, and raises after training.

Accelerate drives FSDP2, and makes the loss scaler of mixed_precision="fp16", on accelerators alone; on a CPU this check
is all that is in the way, so the program sets the state that it leaves behind, and the scaler.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType


def accelerator() -> Accelerator:
    """Accelerate with FSDP2 and a loss scaler."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False)
    made = Accelerator(cpu=True, fsdp_plugin=plugin)
    made.state.distributed_type, made.state.fsdp_plugin = DistributedType.FSDP, plugin
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    made.scaler, made.native_amp = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2), True
    return made


def prepared() -> tuple[Accelerator, torch.nn.Module, torch.optim.Optimizer]:
    """A model of one weight and bias, with its optimizer."""
    driver, model = accelerator(), torch.nn.Linear(1, 1)
    module, optimizer = driver.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    return driver, module, optimizer


def saved(directory: Path) -> tuple[Accelerator, dict[str, Any]]:
    """Train a step and save; the scaler's state."""
    driver, module, optimizer = prepared()
    driver.backward(module(torch.ones(1, 1)).sum())
    optimizer.step()
    driver.save_state(str(directory))
    return driver, driver.scaler.state_dict()


def again(driver: Accelerator, directory: Path) -> str:
    """The outcome of a load in the process that has trained."""
    try:
        driver.load_state(str(directory))
    except AssertionError as error:
        return f"AssertionError: {error}"
    return "no error"


def main() -> int:
    """1 if the load raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        directory = Path(folder, "state")
        driver, state = saved(directory)
        got = again(driver, directory)
        new, _, _ = prepared()
        new.load_state(str(directory))
        names = "scale", "_growth_tracker"
        loaded, expected = ({name: each[name] for name in names} for each in (new.scaler.state_dict(), state))
        print(f"a load in a process that has trained: expected no error, got {got}")
        print(f"a load in a new one: expected {expected}, got {loaded}")
        dist.destroy_process_group()
    return int(got != "no error" or loaded != expected)


if __name__ == "__main__":
    sys.exit(main())
