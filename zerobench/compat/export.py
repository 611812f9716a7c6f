"""Export of whole weights: the state dict of the model on rank 0, and its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine import Engine, GatheredParameters


def whole_state_dict(engine: Engine, *, exclude_frozen: bool) -> dict[str, Any] | None:
    """The model's parameters and buffers by name, on the CPU of rank 0; None elsewhere. A collective.

    At most one unit is whole at a time. Tied parameters share their tensor.
    """
    state = nn.Module.state_dict(engine.module, keep_vars=True)
    values: dict[Any, Tensor] = {}
    for unit in engine.states:
        if unit.sharded:
            _copy(engine, [slot.parameter for slot in unit.unit.slots], values)
    if engine.ranks.rank != 0:
        return None
    kept = {name: each for name, each in state.items() if not (exclude_frozen and _is_frozen(each))}
    return {name: values[each] if each in values else _on_cpu(each) for name, each in kept.items()}


def save_whole(engine: Engine, folder: Path, name: str, *, exclude_frozen: bool) -> None:
    """Write the state dict to ``folder/name`` on rank 0, or leave an older file as it is. A collective."""
    state = whole_state_dict(engine, exclude_frozen=exclude_frozen)
    if state is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{name}.{os.getpid()}"
    try:
        torch.save(state, unfinished)
        unfinished.replace(folder / name)
    finally:
        unfinished.unlink(missing_ok=True)


def _copy(engine: Engine, parameters: list[nn.Parameter], values: dict[Any, Tensor]) -> None:
    with GatheredParameters(parameters):
        if engine.ranks.rank == 0:
            values.update({each: _on_cpu(each) for each in parameters})


def _is_frozen(value: Any) -> bool:
    return isinstance(value, nn.Parameter) and not value.requires_grad


def _on_cpu(value: Any) -> Any:
    """A copy that later steps do not change; extra state that is no tensor stays as it is."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
