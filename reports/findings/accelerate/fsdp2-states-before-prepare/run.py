"""Accelerate with FSDP2: states that an optimizer has before prepare() are lost, and Adagrad's state_dict() raises.

Accelerate drives FSDP2 on accelerators alone; on a CPU this check is all that is in the way, so the program sets the
state that it leaves behind. One rank is enough.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

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


def momentum(driver: Accelerator) -> float:
    """The momentum after a step with the gradient 1, by an optimizer whose loaded momentum is 10."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    saved = {
        "state": {0: {"momentum_buffer": torch.full((1, 1), 10.0)}},
        "param_groups": optimizer.state_dict()["param_groups"],
    }
    optimizer.load_state_dict(saved)
    module, prepared = driver.prepare(model, optimizer)
    driver.backward(module(torch.ones(1, 1)).sum())
    prepared.step()
    state: dict[str, Any] = prepared.state[module.weight]
    return float(state["momentum_buffer"].full_tensor())


def saved(driver: Accelerator) -> str:
    """The outcome of a save of Adagrad, which has states from the beginning."""
    model = torch.nn.Linear(1, 1, bias=False)
    module, prepared = driver.prepare(model, torch.optim.Adagrad(model.parameters()))
    driver.backward(module(torch.ones(1, 1)).sum())
    prepared.step()
    try:
        return f"{len(prepared.state_dict()['state'])} state"
    except KeyError as error:
        return type(error).__name__


def main() -> int:
    """1 if states are lost or a save raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        driver = accelerator()
        got, outcome = momentum(driver), saved(driver)
        print(f"momentum 10 loaded before prepare(), then a step: expected 6.0, got {got}")
        print(f"Adagrad after prepare(), state_dict(): expected 1 state, got {outcome}")
        dist.destroy_process_group()
    return int(got != 6.0 or outcome != "1 state")


if __name__ == "__main__":
    sys.exit(main())
