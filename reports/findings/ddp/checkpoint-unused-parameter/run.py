"""DDP: a checkpoint of an optimizer with a parameter that never had a gradient is saved, and does not load."""

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


class Model(torch.nn.Module):
    """Two layers; a forward may leave the second one out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, both: bool) -> torch.Tensor:
        found = self.first(torch.ones(1, 2))
        return (self.second(found) if both else found).sum()


def made() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """A model and its optimizer."""
    module = DistributedDataParallel(Model(), find_unused_parameters=True)
    return module, torch.optim.Adam(module.parameters())


def outcome(both: bool, folder: Path) -> str:
    """Whether a checkpoint that was saved after a step loads into a new engine."""
    module, optimizer = made()
    module(both).backward()
    optimizer.step()
    optimizer.zero_grad()
    dcp.save(dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True)), checkpoint_id=folder)
    module, optimizer = made()
    state = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True))
    try:
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    except dcp.api.CheckpointException as error:
        return f"{type(error).__name__}: {str(error.failures[0][0])[:70]}"
    return "loaded"


def main() -> int:
    """1 if a load raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {
            f"a step that uses {'both layers' if both else 'one layer'}": outcome(both, Path(folder, str(both)))
            for both in (True, False)
        }
        dist.destroy_process_group()
    for which, value in found.items():
        print(f"{which}: expected loaded, got {value}")
    return int(any(value != "loaded" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
