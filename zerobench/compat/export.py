"""Export of whole weights to a file of the kind that its name says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from zerobench.engine import Engine
from zerobench.engine.checkpoint.safetensors import Entry, write_file


def save_whole(engine: Engine, folder: Path, name: str, *, exclude_frozen: bool) -> None:
    """Write the module's whole state dict to ``folder/name`` on rank 0; a collective.

    A name that ends with ``.safetensors`` gives that format, any other one torch's, as DeepSpeed writes it. If the
    write fails, an older file stays as it is.
    """
    if name.endswith(".safetensors"):
        engine.save_16bit_model(folder, name, exclude_frozen)
        return
    state = engine._zero3_consolidated_16bit_state_dict(exclude_frozen)
    if state is not None:
        save_state_dict(state, folder, name)


def save_state_dict(state: Mapping[str, Tensor], folder: Path, name: str) -> None:
    """Write tensors on the CPU to ``folder/name``, in the format of the name; it appears when it is complete."""
    if name.endswith(".safetensors"):
        write_file(folder / name, [Entry(key, tuple(t.shape), t.dtype) for key, t in state.items()], state.values(), {})
        return
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{name}.{os.getpid()}"
    try:
        torch.save(state, unfinished)
        unfinished.replace(folder / name)
    finally:
        unfinished.unlink(missing_ok=True)
