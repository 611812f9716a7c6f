"""How torch's documentation saves and loads training state: by torch.save, or by torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario

#: "It supports load-time resharding, which enables saving in one cluster topology and loading into another."
_PAGE = "https://docs.pytorch.org/docs/2.13/distributed.checkpoint.html"


def save_own(state: Mapping[str, Any], directory: Path, group: dist.ProcessGroup) -> None:
    """Save this rank's state to a file of its own: the buffers of a model are each rank's."""
    torch.save(dict(state), directory / f"rank-{dist.get_rank(group)}.pt")


def load_own(directory: Path, group: dist.ProcessGroup) -> dict[str, Any]:
    """The state that this rank saved, on the CPU; if there were fewer, that of a rank modulo their number."""
    saved = len(list(directory.glob("rank-*.pt")))
    path = directory / f"rank-{dist.get_rank(group) % saved}.pt"
    loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


def save_sharded(model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, group: dist.ProcessGroup) -> None:
    """Save the shards of all ranks. A collective."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings(action="ignore"):  # of a directory with an earlier state
        save(_state(model, optimizer), checkpoint_id=directory, process_group=group)


def load_sharded(
    model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, group: dist.ProcessGroup, *, whole: bool = True
) -> None:
    """Load the shards of this rank, those of the optimizer too if it is the ``whole`` state. A collective."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings(action="ignore"):
        state: dict[str, Any] = _state(model, optimizer) if whole else {"model": get_model_state_dict(model)}
        load(state, checkpoint_id=directory, process_group=group)
        if whole:
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        else:
            set_model_state_dict(model, state["model"])


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def not_saved(scenario: Scenario) -> str | None:
    """The states of a Scenario that torch.distributed.checkpoint does not save; None if it saves them all."""
    if scenario.resumes and isinstance(scenario.model, Odd) and scenario.model.buffers and scenario.world > 1:
        return f"torch.distributed.checkpoint saves one rank's buffers, and each rank has its own: {_PAGE}"
    return None
