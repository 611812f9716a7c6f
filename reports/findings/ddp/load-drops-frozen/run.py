"""DDP: set_state_dict drops the optimizer states of frozen parameters in the optimizer that loads."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel


def momentum_after_load(frozen: bool, folder: Path) -> str:
    """The momentum of a layer after its optimizer loads the checkpoint that it has saved."""
    module = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(1, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    layer = module.module[1]
    before = optimizer.state[layer.bias]["momentum_buffer"].item()
    state = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True))
    dcp.save(state, checkpoint_id=folder)
    layer.requires_grad_(not frozen)
    state = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True))
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    after = optimizer.state[layer.bias].get("momentum_buffer")
    return "kept" if after is not None and after.item() == before else "dropped"


def main() -> int:
    """1 if a load drops a state."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {frozen: momentum_after_load(frozen, Path(folder, str(frozen))) for frozen in (False, True)}
        dist.destroy_process_group()
    for frozen, value in found.items():
        print(f"{'a frozen' if frozen else 'a trained'} parameter's momentum: expected kept, got {value}")
    return int(any(value != "kept" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
