"""Export of whole weights to a file of the kind that its name says."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

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
        save_state_dict(in_order_of(engine.module, state), folder, name)


def in_order_of(module: nn.Module, state: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
    """A state dict in the order of the module's own, as DeepSpeed exports it: each module's buffers after its
    parameters. Names that a hook of the module gives otherwise come last."""
    own = [name for name in module.state_dict() if name in state]
    return OrderedDict((name, state[name]) for name in dict.fromkeys([*own, *state]))


def save_parts(state: Mapping[str, Tensor], folder: Path, name: str, max_shard_size: str | int | None) -> None:
    """Write tensors on the CPU to ``folder/name``, or to several files and an index, none above ``max_shard_size``.

    The size is in bytes, or a text such as "5GB". huggingface_hub divides the tensors and names the files; without it
    they are one file.
    """
    if max_shard_size is None or find_spec("huggingface_hub") is None:
        save_state_dict(state, folder, name)
        return
    from huggingface_hub import split_torch_state_dict_into_shards

    stem, kind = name.rsplit(".", 1)
    parts = split_torch_state_dict_into_shards(
        dict(state), filename_pattern=f"{stem}{{suffix}}.{kind}", max_shard_size=max_shard_size
    )
    for file, names in parts.filename_to_tensors.items():
        save_state_dict({each: state[each] for each in names}, folder, file)
    if parts.is_sharded:
        index = {"metadata": parts.metadata, "weight_map": parts.tensor_to_filename}
        write_whole(folder / f"{name}.index.json", lambda path: path.write_text(json.dumps(index, indent=2) + "\n"))


def save_state_dict(state: Mapping[str, Tensor], folder: Path, name: str) -> None:
    """Write tensors on the CPU to ``folder/name``, in the format of the name; it appears when it is complete."""
    if name.endswith(".safetensors"):
        write_file(folder / name, [Entry(key, tuple(t.shape), t.dtype) for key, t in state.items()], state.values(), {})
        return
    write_whole(folder / name, lambda path: torch.save(state, path))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make the file; it appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
