"""Accelerate with FSDP2 and fp16: clip_grad_norm_() of a part of the parameters raises.

Accelerate drives FSDP2, and makes the loss scaler of mixed_precision="fp16", on accelerators alone; on a CPU this check
is all that is in the way, so the program sets the state that it leaves behind, and the scaler.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType


def accelerator() -> Accelerator:
    """Accelerate with FSDP2 and a loss scaler."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False)
    made = Accelerator(cpu=True, mixed_precision="fp16", fsdp_plugin=plugin)
    made.state.distributed_type, made.state.fsdp_plugin = DistributedType.FSDP, plugin
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    made.scaler, made.native_amp = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2), True
    return made


def outcome(every: bool) -> str:
    """The outcome of a clip of all parameters, or of those that train."""
    driver, model = accelerator(), torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    module, optimizer = driver.prepare(model, torch.optim.SGD([model.weight], lr=0.1))
    driver.backward(module(torch.ones(1, 1)).sum())
    try:
        driver.clip_grad_norm_([p for p in module.parameters() if every or p.requires_grad], 1.0)
        optimizer.step()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "no error"


def main() -> int:
    """1 if a clip raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {"all parameters": outcome(True), "those that train": outcome(False)}
        for name, got in found.items():
            print(f"a clip of {name}: expected no error, got {got}")
        dist.destroy_process_group()
    return int(any(got != "no error" for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
