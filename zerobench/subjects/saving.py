"""How torch's documentation saves and loads training state: by torch.save, or by torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario

#: "It supports load-time resharding, which enables saving in one cluster topology and loading into another."
_PAGE = "https://docs.pytorch.org/docs/2.13/distributed.checkpoint.html"


def save_own(state: Mapping[str, Any], directory: Path, group: dist.ProcessGroup) -> None:
    """Save this rank's state to a file of its own: the buffers of a model are each rank's. A collective.

    No rank goes on before all files are there, because a load counts them; those of further ranks, which more ranks
    have saved before, go.
    """
    torch.save(dict(state), directory / f"rank-{dist.get_rank(group)}.pt")
    if dist.get_rank(group) == 0:
        for path in directory.glob("rank-*.pt"):
            if int(path.stem.removeprefix("rank-")) >= dist.get_world_size(group):
                path.unlink()
    dist.barrier(group)


def load_own(directory: Path, group: dist.ProcessGroup) -> dict[str, Any]:
    """The state that this rank saved, on the CPU; if there were fewer, that of a rank modulo their number."""
    saved = len(list(directory.glob("rank-*.pt")))
    path = directory / f"rank-{dist.get_rank(group) % saved}.pt"
    loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


_SCALER = "scaler.pt"


def save_scaler(scaler: torch.amp.GradScaler, directory: Path, group: dist.ProcessGroup) -> None:
    """Save the scaler's state, which all ranks have alike. A collective; no rank goes on before the file is there."""
    if dist.get_rank(group) == 0:
        torch.save(scaler.state_dict(), directory / _SCALER)
    dist.barrier(group)


def load_scaler(scaler: torch.amp.GradScaler, directory: Path) -> None:
    """Give the scaler the saved state."""
    scaler.load_state_dict(torch.load(directory / _SCALER, weights_only=True))


#: The ways of torch.distributed.checkpoint beside shards that all ranks save as they are: the options of its state
#: dicts, and the function that loads or saves them.
FULL, BROADCAST, BROADCAST_AT_ONCE = "full_state_dict", "broadcast_from_rank0", "set_state_dict(broadcast_from_rank0)"
FLAT, COPIED, ASYNC = "flatten_optimizer_state_dict", "cpu_offload", "async_save"
#: Without the frozen parameters, of which the client has the values.
TRAINED = "ignore_frozen_params"
#: Of an engine whose usual way is torch.save.
DISTRIBUTED = "torch.distributed.checkpoint"
SHARDED_SAVINGS = (FULL, BROADCAST, BROADCAST_AT_ONCE, FLAT, COPIED, ASYNC, TRAINED)
#: Rank 0 of the job gets the whole state and sends it to all ranks of the job, also if it has no part of the model:
#: reports/findings/fsdp2/full-state-of-a-group.
OF_RANK_0 = frozenset([FULL, BROADCAST, BROADCAST_AT_ONCE])
_FILE = "full.pt"


def save_sharded(
    model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, group: dist.ProcessGroup, saving: str = ""
) -> None:
    """Save the shards of all ranks, or the whole state on rank 0. A collective; no rank goes on before the file is
    there."""
    with warnings.catch_warnings(action="ignore"):  # of a directory with an earlier state
        state = _state(model, optimizer, saving)
        if saving not in OF_RANK_0:
            from torch.distributed.checkpoint.state_dict_saver import save

            if saving == ASYNC:
                _save_while_training(state, model, optimizer, directory, group)
            else:
                save(state, checkpoint_id=directory, process_group=group)
            return
        if dist.get_rank(group) == 0:
            torch.save(state, directory / _FILE)
        dist.barrier(group)


@torch.no_grad()
def _save_while_training(
    state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, group: dist.ProcessGroup
) -> None:
    """Save while all that a step changes has other values, as in a client that trains on; they come back at the end.

    The state is that of the call: https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
    """
    from torch.distributed.checkpoint.state_dict_saver import async_save

    saving: Any = async_save(state, checkpoint_id=directory, process_group=group)
    trained = [p for p in model.parameters() if p.requires_grad]
    states = [each for of_one in optimizer.state.values() for each in of_one.values() if isinstance(each, Tensor)]
    changed = [t.to_local() if isinstance(t, DTensor) else t for t in (each.detach() for each in (*trained, *states))]
    kept = [each.clone() for each in changed]
    for each in changed:
        each.add_(1)
    saving.result()
    for each, value in zip(changed, kept, strict=True):
        each.copy_(value)


def load_sharded(
    model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, group: dist.ProcessGroup, scenario: Scenario
) -> None:
    """Load the part of the state that the Scenario loads. A collective."""
    from torch.distributed.checkpoint.state_dict import (
        set_model_state_dict,
        set_optimizer_state_dict,
        set_state_dict,
    )

    saving, whole = scenario.saving, scenario.loads == "all"
    with warnings.catch_warnings(action="ignore"):
        state, options = _loaded(model, optimizer, directory, group, scenario), _options(saving, loads=True)
        both = {"model_state_dict": state["model"], "optim_state_dict": state.get("optimizer", {})}
        if not whole or saving == BROADCAST:
            set_model_state_dict(model, state["model"], options=options)
        if whole and saving == BROADCAST:
            set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        elif whole:
            set_state_dict(model, optimizer, **both, options=options)


def _loaded(
    model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, group: dist.ProcessGroup, scenario: Scenario
) -> dict[str, Any]:
    """The state as this rank passes it on: its shards, the whole, or nothing if rank 0 broadcasts it."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    if scenario.saving not in OF_RANK_0:
        whole, options = scenario.loads == "all", _options(scenario.saving)
        shards: dict[str, Any] = (
            _state(model, optimizer, scenario.saving)
            if whole
            else {"model": get_model_state_dict(model, options=options)}
        )
        load(shards, checkpoint_id=directory, process_group=group)
        return shards
    if scenario.saving != FULL and dist.get_rank(group):
        return {"model": {}, "optimizer": {}}
    found: dict[str, Any] = torch.load(directory / _FILE, map_location="cpu", weights_only=True)
    return found


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, saving: str) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(model, optimizer, options=_options(saving))
    return {"model": of_model, "optimizer": of_optimizer}


def _options(saving: str, *, loads: bool = False) -> Any:
    """The options of a state dict; a whole one is gathered on rank 0 alone."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    full = saving in OF_RANK_0
    return StateDictOptions(
        full_state_dict=full,
        cpu_offload=saving == COPIED or (full and not loads),
        broadcast_from_rank0=loads and full and saving != FULL,
        flatten_optimizer_state_dict=saving == FLAT,
        ignore_frozen_params=saving == TRAINED,
        strict=saving != TRAINED,
    )


def not_saved(scenario: Scenario) -> str | None:
    """The states of a Scenario that torch.distributed.checkpoint does not save; None if it saves them all."""
    if scenario.resumes and isinstance(scenario.model, Odd) and scenario.model.buffers and scenario.world > 1:
        return f"torch.distributed.checkpoint saves one rank's buffers, and each rank has its own: {_PAGE}"
    frozen = isinstance(scenario.model, Odd) and scenario.model.frozen and scenario.loads_into != "same"
    if scenario.saving == TRAINED and (frozen or scenario.frozen_steps):
        return f"{TRAINED} leaves the values of frozen parameters to the client: {_PAGE}"
    return None


def not_distributed(scenario: Scenario) -> str | None:
    """The states that it does not save of an engine with whole parameters, as :func:`not_saved`."""
    if scenario.saving != DISTRIBUTED:
        return None
    if scenario.dtype != "fp32":
        return f"its state dicts have no place for the client's master weights: {_PAGE}"
    return not_saved(scenario)
