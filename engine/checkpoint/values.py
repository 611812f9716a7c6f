"""The values of a checkpoint's tensors, read range by range in one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import record as records
from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.pieces import FROZEN, MASTER
from zerobench.engine.checkpoint.plain import decode
from zerobench.engine.checkpoint.record import Chunk, Record
from zerobench.engine.checkpoint.safetensors import DTYPES
from zerobench.engine.checkpoint.shard_file import Stored, opened
from zerobench.engine.errors import CheckpointError


def find_checkpoint(directory: Path, tag: str | None) -> Path:
    """The folder of a checkpoint; ``tag`` is by default the latest.

    Raises:
        CheckpointError: there is none.
    """
    chosen = names.read_latest(directory) if tag is None else tag
    if chosen is None:
        raise CheckpointError(f"{str(directory)!r} has no file 'latest'; give the tag of a checkpoint")
    return names.folder_of(directory, chosen)


def open_record(folder: Path) -> Record:
    """The record of a checkpoint in this engine's layout, whose files are there.

    Raises:
        CheckpointError: it is damaged, or a file is missing.
    """
    saved = records.read(folder)
    decode(saved.contents.client_state)
    saved.check_files(folder)
    return saved


@dataclass(frozen=True)
class StoredValues:
    """The tensors of a checkpoint in this engine's layout; every block that is read is checked."""

    folder: Path
    record: Record

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """The elements [start, stop) of a tensor, in the order of the parameter's memory.

        Raises:
            CheckpointError: they are damaged.
        """
        tensor = self.record.tensors[key]
        values = torch.empty(stop - start, dtype=DTYPES[tensor.dtype])
        for chunk in tensor.chunks:
            lo, hi = max(start, chunk.offset), min(stop, chunk.offset + chunk.elements)
            if lo < hi:
                self._read(chunk, lo - chunk.offset, values[lo - start : hi - start])
        return values

    def _read(self, chunk: Chunk, first: int, target: Tensor) -> None:
        """Read elements of a chunk from ``first`` on."""
        size = target.dtype.itemsize
        stored = Stored(chunk.file, chunk.begin, chunk.digests)
        with opened(self.folder / chunk.file) as descriptor:
            path = self.folder / chunk.file
            shard_file.read(descriptor, path, stored, chunk.elements * size, first * size, target)

    def parameter_key(self, name: str) -> str:
        """The key of a parameter's own values."""
        return f"{self._own_kind(name)}.{name}"

    def whole_parameter(self, name: str) -> Tensor:
        """A parameter's own values, in its shape."""
        return self.whole(self._own_kind(name), name)

    def _own_kind(self, name: str) -> str:
        return MASTER if self.record.contents.parameters[name].trained else FROZEN

    def whole(self, kind: str, name: str) -> Tensor:
        """A parameter's values of a kind, in its shape."""
        entry = self.record.contents.parameters[name]
        elements = torch.Size(entry.shape).numel()
        return self.read(f"{kind}.{name}", 0, elements).as_strided(entry.shape, entry.stride)
