"""FSDP1's own ways to save and load a whole state: its state dict types, and its functions for the optimizer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)

from zerobench.scenario import Scenario

#: By the state dict type, on all ranks; by the older functions, which gather the state on rank 0 and scatter it.
TYPED, SCATTERED = "FSDP.optim_state_dict", "scatter_full_optim_state_dict"
SAVINGS = (TYPED, SCATTERED)
_FILE = "whole.pt"


def save(
    module: FullyShardedDataParallel,
    optimizer: torch.optim.Optimizer,
    directory: Path,
    group: dist.ProcessGroup,
    saving: str,
) -> None:
    """Save the whole state on rank 0. A collective; no rank goes on before the file is there."""
    with _whole(module):
        state: dict[str, Any] = {"model": module.state_dict()}
        if saving == TYPED:
            state["optimizer"] = FullyShardedDataParallel.optim_state_dict(module, optimizer, group=group)
    if saving == SCATTERED:
        state["optimizer"] = FullyShardedDataParallel.full_optim_state_dict(module, optimizer, group=group)
    if dist.get_rank(group) == 0:
        torch.save(state, directory / _FILE)
    dist.barrier(group)


def load(
    module: FullyShardedDataParallel,
    optimizer: torch.optim.Optimizer,
    directory: Path,
    group: dist.ProcessGroup,
    scenario: Scenario,
) -> None:
    """Load the part of the state that the Scenario loads. A collective."""
    state = torch.load(directory / _FILE, map_location="cpu", weights_only=True)
    with _whole(module):
        module.load_state_dict(state["model"])
        if scenario.loads == "all" and scenario.saving == TYPED:
            own = FullyShardedDataParallel.optim_state_dict_to_load(module, optimizer, state["optimizer"], group=group)
            optimizer.load_state_dict(own)
    if scenario.loads == "all" and scenario.saving == SCATTERED:
        given = state["optimizer"] if dist.get_rank(group) == 0 else None
        own = FullyShardedDataParallel.scatter_full_optim_state_dict(given, module, optim=optimizer, group=group)
        optimizer.load_state_dict(own)


def _whole(module: FullyShardedDataParallel) -> Any:
    """Inside, state dicts are whole on every rank."""
    configs = FullStateDictConfig(rank0_only=False), FullOptimStateDictConfig(rank0_only=False)
    return FullyShardedDataParallel.state_dict_type(module, StateDictType.FULL_STATE_DICT, *configs)
