"""A checkpoint without an engine, in one process: describe it, verify every byte, export whole weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.deepspeed.files import is_deepspeed
from zerobench.engine.checkpoint.deepspeed.weights import DeepSpeedWeights
from zerobench.engine.checkpoint.record import Record
from zerobench.engine.checkpoint.safetensors import DTYPES, Entry, write_file
from zerobench.engine.checkpoint.shard_file import Stored, opened
from zerobench.engine.checkpoint.values import StoredValues, find_checkpoint, open_record
from zerobench.engine.config.schema import DTYPES as PRECISIONS
from zerobench.engine.errors import CheckpointError


@dataclass(frozen=True)
class _Weight:
    """A tensor to export, and how to read it."""

    entry: Entry
    kind: Literal["trained", "frozen", "buffer"]
    read: Callable[[], Tensor]

    def rounded(self, dtype: torch.dtype) -> _Weight:
        """The tensor in another dtype if it is a floating-point parameter."""
        if self.kind == "buffer" or not self.entry.dtype.is_floating_point:
            return self
        return replace(self, entry=replace(self.entry, dtype=dtype))

    def value(self) -> Tensor:
        """Read it."""
        return self.read().to(self.entry.dtype).view(self.entry.shape)


def describe_checkpoint(load_dir: str | PathLike[str], tag: str | None = None) -> dict[str, Any]:
    """A checkpoint in numbers, as JSON; its values are not read.

    Args:
        load_dir: the directory of the checkpoints.
        tag: by default the one that ``latest`` names.

    Raises:
        CheckpointError: there is no such checkpoint, or its record is damaged.
    """
    directory = Path(load_dir)
    found = {"latest": names.read_latest(directory), "leftovers": names.leftovers(directory)}
    folder = find_checkpoint(directory, tag)
    if is_deepspeed(folder):
        return {"folder": str(folder), **found, **DeepSpeedWeights(folder).describe()}
    saved = open_record(folder)
    contents = saved.contents
    kinds: dict[str, int] = {}
    for key, tensor in saved.tensors.items():
        kind = key.split(".", 1)[0]
        kinds[kind] = kinds.get(kind, 0) + tensor.elements * DTYPES[tensor.dtype].itemsize
    return {
        "folder": str(folder),
        **found,
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
    }


def verify_checkpoint(load_dir: str | PathLike[str], tag: str | None = None) -> int:
    """Check every byte of a checkpoint against its checksum; returns the number of bytes.

    DeepSpeed's files have a checksum of each tensor.

    Raises:
        CheckpointError: there is no such checkpoint, or a file is missing or damaged; the message names the first one.
    """
    folder = find_checkpoint(Path(load_dir), tag)
    if is_deepspeed(folder):
        return sum(DeepSpeedWeights(folder).sizes.values())
    saved = open_record(folder)
    for name, file in saved.files.items():
        with opened(folder / name) as descriptor:
            stored = Stored(name, 0, (file.header,))
            header = torch.empty(file.header_bytes, dtype=torch.uint8)
            shard_file.read(descriptor, folder / name, stored, file.header_bytes, 0, header)
    values = StoredValues(folder, saved)
    for key, tensor in saved.tensors.items():
        for chunk in tensor.chunks:
            values.read(key, chunk.offset, chunk.offset + chunk.elements)
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
    found = [each.rounded(PRECISIONS[dtype]) for each in _weights(Path(load_dir), tag)]
    found.sort(key=lambda each: -each.entry.dtype.itemsize)
    write_file(Path(path), [each.entry for each in found], (each.value() for each in found), {})


def read_weights(load_dir: str | PathLike[str], tag: str | None = None, frozen: bool = True) -> dict[str, Tensor]:
    """The whole fp32 weights of a checkpoint by name, and its buffers with rank 0's values, on the CPU.

    A tied parameter or buffer has all its names, of one tensor, as in the module's state dict. The order is that of
    DeepSpeed: buffers, frozen parameters, those that train, and the other names of tied ones.

    Args:
        load_dir: the directory of the checkpoints.
        tag: by default the one that ``latest`` names.
        frozen: whether the parameters that do not train are included.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    found = [each.rounded(torch.float32) for each in _weights(Path(load_dir), tag)]
    found.sort(key=lambda each: ("buffer", "frozen", "trained").index(each.kind))
    values = {each.entry.key: each.value() for each in found if frozen or each.kind != "frozen"}
    return values | {other: values[name] for other, name in _tied(Path(load_dir), tag).items() if name in values}


def _tied(directory: Path, tag: str | None) -> dict[str, str]:
    """The other names of tied parameters and buffers, each with the name that has the values."""
    folder = find_checkpoint(directory, tag)
    return DeepSpeedWeights(folder).tied if is_deepspeed(folder) else open_record(folder).contents.tied


def _weights(directory: Path, tag: str | None) -> Iterator[_Weight]:
    folder = find_checkpoint(directory, tag)
    return _of_deepspeed(folder) if is_deepspeed(folder) else _of_own(folder, open_record(folder))


def _of_deepspeed(folder: Path) -> Iterator[_Weight]:
    weights = DeepSpeedWeights(folder)
    for name, (shape, pieces) in weights.whole.items():
        entry = Entry(name, shape, pieces[0].dtype if pieces else torch.float32)
        yield _Weight(entry, "trained" if name in weights.trained else "frozen", partial(_joined, pieces, shape))
    for name, buffer in weights.buffers.items():
        entry = Entry(name, tuple(buffer.shape), buffer.dtype)
        yield _Weight(entry, "buffer", partial(_joined, [buffer.reshape(-1)], buffer.shape))


def _joined(pieces: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    return torch.cat(list(pieces)).view(shape) if pieces else torch.empty(shape)


def _of_own(folder: Path, saved: Record) -> Iterator[_Weight]:
    stored = StoredValues(folder, saved)
    for name, parameter in saved.contents.parameters.items():
        key = stored.parameter_key(name)
        tensor = saved.tensors.get(key)
        kind: Literal["trained", "frozen"] = "trained" if parameter.trained else "frozen"
        if not _elements(parameter.shape):
            yield _Weight(Entry(name, parameter.shape, torch.float32), kind, partial(torch.empty, parameter.shape))
        elif tensor is not None:
            entry = Entry(name, parameter.shape, DTYPES[tensor.dtype])
            yield _Weight(entry, kind, partial(stored.whole_parameter, name))
        elif parameter.trained or saved.contents.frozen:
            raise CheckpointError(f"{str(folder)!r} has no tensor {key!r}")
    for name, buffer in saved.contents.buffers.items():
        key = f"buffer.0.{name}"
        if key in saved.tensors:
            entry = Entry(name, buffer.shape, DTYPES[saved.tensors[key].dtype])
            yield _Weight(entry, "buffer", partial(stored.read, key, 0, saved.tensors[key].elements))


def _elements(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
