"""The safetensors format: the length of a JSON header (8 bytes, little-endian), the header, the values without gaps.

It is written here, and not by the package of that name, because the package takes all tensors of a file at once and
copies each into bytes. Here a tensor is requested when its turn comes, so that one parameter at a time needs memory,
and the checksum of each block is computed while it is written. The tests read the files with the package.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zerobench.engine.checkpoint.directory import failed, flush
from zerobench.engine.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The size of the values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def dtype_name(dtype: torch.dtype, key: str) -> str:
    """The format's name of a dtype.

    Raises:
        CheckpointError: the format has no such dtype.
    """
    if dtype not in _NAMES:
        raise CheckpointError(
            f"{key} is {dtype}, which the safetensors format does not have; it has "
            f"{', '.join(str(each).removeprefix('torch.') for each in _NAMES)}: convert it"
        )
    return _NAMES[dtype]


def header(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file before its values, which follow in the order of ``entries``."""
    table: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for each in entries:
        offsets = [at, at + each.nbytes]
        table[each.key] = {"dtype": dtype_name(each.dtype, each.key), "shape": each.shape, "data_offsets": offsets}
        at += each.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def memory_of(values: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU in row-major order, for reading and, if it is contiguous, for writing."""
    return memoryview(values.contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy's stubs


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all bytes at the file's position."""
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])


def write_file(path: Path, entries: Sequence[Entry], tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file that appears when it is complete and on the drive, in place of an older one.

    Args:
        path: the file; its directory is made if it does not exist.
        entries: the tensors, wide dtypes first if the values are to be aligned.
        tensors: the values, on the CPU, in the order of ``entries``; each is requested when it is written.
        metadata: further strings in the header.

    Raises:
        CheckpointError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.saving-{uuid.uuid4().hex[:12]}")
    with failed(f"write {str(path)!r}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb", buffering=0) as file:
                write_all(file.fileno(), memoryview(header(entries, metadata)))
                for tensor in tensors:
                    write_all(file.fileno(), memory_of(tensor))
                os.fsync(file.fileno())
            temporary.replace(path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
