"""A checkpoint without an engine, in one process: describe it, verify every byte, export whole weights."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import record, shard_file
from zerobench.engine.checkpoint.pieces import FROZEN, MASTER
from zerobench.engine.checkpoint.plain import decode
from zerobench.engine.checkpoint.record import Chunk, Record, TensorEntry
from zerobench.engine.checkpoint.safetensors import DTYPES, Entry, write_file
from zerobench.engine.checkpoint.shard_file import Stored, opened
from zerobench.engine.config.schema import DTYPES as PRECISIONS
from zerobench.engine.errors import CheckpointError


def describe_checkpoint(load_dir: str | PathLike[str], tag: str | None = None) -> dict[str, Any]:
    """A checkpoint in numbers, as JSON; its values are not read.

    Args:
        load_dir: the directory of the checkpoints.
        tag: by default the one that ``latest`` names.

    Raises:
        CheckpointError: there is no such checkpoint, or its record is damaged.
    """
    directory = Path(load_dir)
    folder, saved = _opened(directory, tag)
    contents = saved.contents
    kinds: dict[str, int] = {}
    for key, tensor in saved.tensors.items():
        kind = key.split(".", 1)[0]
        kinds[kind] = kinds.get(kind, 0) + tensor.elements * DTYPES[tensor.dtype].itemsize
    return {
        "folder": str(folder),
        "latest": names.read_latest(directory),
        "written_by": saved.written_by,
        "world": contents.world,
        "dtype": contents.dtype,
        "global_steps": contents.global_steps,
        "skipped_steps": contents.skipped_steps,
        "parameters": sum(_elements(each.shape) for each in contents.parameters.values()),
        "optimizer": contents.optimizer.rule,
        "lr_scheduler": None if contents.lr_scheduler is None else contents.lr_scheduler.type,
        "bytes": kinds,
        "header_bytes": sum(each.header_bytes for each in saved.files.values()),
        "files": {name: each.bytes for name, each in saved.files.items()},
        "leftovers": names.leftovers(directory),
    }


def verify_checkpoint(load_dir: str | PathLike[str], tag: str | None = None) -> int:
    """Check every byte of a checkpoint against its checksum; returns the number of bytes.

    Raises:
        CheckpointError: there is no such checkpoint, or a file is missing or damaged; the message names the first one.
    """
    folder, saved = _opened(Path(load_dir), tag)
    for name, file in saved.files.items():
        with opened(folder / name) as descriptor:
            stored = Stored(name, 0, (file.header,))
            header = torch.empty(file.header_bytes, dtype=torch.uint8)
            shard_file.read(descriptor, folder / name, stored, file.header_bytes, 0, header)
    for tensor in saved.tensors.values():
        for chunk in tensor.chunks:
            _read(folder, tensor, chunk)
    return sum(file.bytes for file in saved.files.values())


def export_checkpoint(
    load_dir: str | PathLike[str], path: str | PathLike[str], tag: str | None = None, dtype: str = "fp32"
) -> None:
    """Write the whole weights of a checkpoint to one safetensors file, a parameter at a time.

    Args:
        load_dir: the directory of the checkpoints.
        path: the file; its name ends with .safetensors.
        tag: by default the one that ``latest`` names.
        dtype: of the floating-point parameters: ``fp32`` (the masters), ``bf16`` or ``fp16``. Buffers keep theirs, with
            rank 0's values.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or the file cannot be written.
    """
    if dtype not in PRECISIONS or not str(path).endswith(".safetensors"):
        raise CheckpointError(
            f"cannot export {dtype} to {str(path)!r}; the dtypes are {', '.join(PRECISIONS)}, and the name must end "
            "with .safetensors"
        )
    folder, saved = _opened(Path(load_dir), tag)
    found = sorted(_weights(folder, saved, PRECISIONS[dtype]), key=lambda each: -each[1].dtype.itemsize)
    values = (_whole(folder, saved, key, entry) for key, entry in found)
    write_file(Path(path), [entry for _, entry in found], values, {})


def read_weights(load_dir: str | PathLike[str], tag: str | None = None, frozen: bool = True) -> dict[str, Tensor]:
    """The whole fp32 weights of a checkpoint by name, and its buffers with rank 0's values, on the CPU.

    Args:
        load_dir: the directory of the checkpoints.
        tag: by default the one that ``latest`` names.
        frozen: whether the parameters that do not train are included.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    folder, saved = _opened(Path(load_dir), tag)
    found = _weights(folder, saved, torch.float32)
    return {entry.key: _whole(folder, saved, key, entry) for key, entry in found if frozen or _trains(saved, entry)}


def _trains(saved: Record, entry: Entry) -> bool:
    parameter = saved.contents.parameters.get(entry.key)
    return parameter is None or parameter.trained


def _weights(folder: Path, saved: Record, dtype: torch.dtype) -> list[tuple[str, Entry]]:
    """The tensors of parameters and buffers with their keys in the record; floating-point parameters in ``dtype``."""
    found = []
    for name, parameter in saved.contents.parameters.items():
        key = f"{MASTER if parameter.trained else FROZEN}.{name}"
        tensor = saved.tensors.get(key)
        if tensor is None and _elements(parameter.shape) and (parameter.trained or saved.contents.frozen):
            raise CheckpointError(f"{str(folder)!r} has no tensor {key!r}")
        if tensor is not None or not _elements(parameter.shape):
            kept = DTYPES[tensor.dtype] if tensor else torch.float32
            found.append((key, Entry(name, parameter.shape, dtype if kept.is_floating_point else kept)))
    for name, buffer in saved.contents.buffers.items():
        tensor = saved.tensors.get(f"buffer.0.{name}")
        if tensor is not None:
            found.append((f"buffer.0.{name}", Entry(name, buffer.shape, DTYPES[tensor.dtype])))
    return found


def _opened(directory: Path, tag: str | None) -> tuple[Path, Record]:
    chosen = names.read_latest(directory) if tag is None else tag
    if chosen is None:
        raise CheckpointError(f"{str(directory)!r} has no file 'latest'; give the tag of a checkpoint")
    folder = names.folder_of(directory, chosen)
    saved = record.read(folder)
    decode(saved.contents.client_state)
    saved.check_files(folder)
    return folder, saved


def _elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _read(folder: Path, tensor: TensorEntry, chunk: Chunk) -> Tensor:
    """The values of a chunk, checked."""
    values = torch.empty(chunk.elements, dtype=DTYPES[tensor.dtype])
    stored = Stored(chunk.file, chunk.begin, chunk.digests)
    with opened(folder / chunk.file) as descriptor:
        shard_file.read(descriptor, folder / chunk.file, stored, values.nbytes, 0, values)
    return values


def _whole(folder: Path, saved: Record, key: str, entry: Entry) -> Tensor:
    """A whole tensor in its shape."""
    tensor = saved.tensors.get(key)
    if tensor is None:
        return torch.empty(entry.shape, dtype=entry.dtype)
    flat = torch.cat([_read(folder, tensor, chunk) for chunk in tensor.chunks])
    parameter = saved.contents.parameters.get(entry.key)
    shaped = flat.view(entry.shape) if parameter is None else flat.as_strided(entry.shape, parameter.stride)
    return shaped.to(entry.dtype)
