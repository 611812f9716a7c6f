"""Shard files: tensors in the safetensors format, written piece by piece and read block by block.

The checksum of each block of a piece is in the checkpoint's record. A rank that needs a part of a piece reads and
checks the blocks of this part only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import xxhash
from pydantic import Field
from torch import Tensor

from zerobench.engine.checkpoint import safetensors
from zerobench.engine.checkpoint.directory import failed
from zerobench.engine.checkpoint.pieces import Range
from zerobench.engine.checkpoint.safetensors import Entry, memory_of, write_all
from zerobench.engine.errors import CheckpointError
from zerobench.engine.section import Section

#: Bytes that share a checksum.
BLOCK = 1 << 20
#: Bytes of a file after which a reader gives the system's copy of those before back.
_WINDOW = 8 * BLOCK


def digest(data: bytes | memoryview) -> str:
    """The checksum of a block: XXH3, 64 bits, as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data)


@dataclass(frozen=True)
class Stored:
    """The position of a piece: a file, the piece's first byte there, and the checksum of each of its blocks."""

    file: str
    begin: int
    digests: tuple[str, ...]


class FileEntry(Section):
    """A shard file in the record: its size, and the size and checksum of its header."""

    bytes: Annotated[int, Field(ge=0)]
    header_bytes: Annotated[int, Field(ge=0)]
    header: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


def name_of(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


def header(ranges: Sequence[Range]) -> bytes:
    """The file's bytes before the values; torch's HuggingFaceStorageReader can read the offsets."""
    offsets = {each.key: {"saved_offsets": [each.offset]} for each in ranges}
    metadata = {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    return safetensors.header([Entry(each.key, (each.length,), each.dtype) for each in ranges], metadata)


def write(path: Path, ranges: Sequence[Range], values: Iterable[Tensor]) -> tuple[FileEntry, list[Stored]]:
    """Write a new file and wait until it is on the drive.

    The values of a range are requested when they are written, so no more than one needs memory at a time.

    Args:
        path: the file.
        ranges: the pieces, in their order in the file.
        values: of each piece, 1-dimensional on the CPU.

    Returns:
        The file's entry in the record, and the position of each piece.

    Raises:
        CheckpointError: the file cannot be written.
    """
    start = header(ranges)
    stored, at = [], len(start)
    with failed(f"write {path.name!r} in {str(path.parent)!r}"), path.open("xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(start))
        for each, tensor in zip(ranges, values, strict=True):
            stored.append(Stored(path.name, at, tuple(_write_blocks(file.fileno(), memory_of(tensor)))))
            at += each.nbytes
        os.fsync(file.fileno())
    return FileEntry(bytes=at, header_bytes=len(start), header=digest(start)), stored


def _write_blocks(descriptor: int, memory: memoryview) -> Iterator[str]:
    for at in range(0, len(memory), BLOCK):
        block = memory[at : at + BLOCK]
        write_all(descriptor, block)
        yield digest(block)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file to read; a symbolic link or anything but a plain file is refused."""
    with failed(f"read {path.name!r} in {str(path.parent)!r}"):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the system reads twice as far ahead
            yield descriptor
        finally:
            os.close(descriptor)


def read(descriptor: int, path: Path, stored: Stored, size: int, start: int, target: Tensor) -> None:
    """Read bytes of a piece, from its byte ``start`` on, into ``target``, and check every block that they are in.

    Args:
        descriptor: of the open file.
        path: its name, for errors.
        stored: the piece.
        size: the piece's bytes.
        start: the first byte to read, counted from the piece's start.
        target: 1-dimensional, contiguous, on the CPU.

    Raises:
        CheckpointError: the file is shorter, or a block has another checksum.
    """
    memory = memory_of(target)
    stop = start + len(memory)
    for index in range(start // BLOCK, -(-stop // BLOCK)):
        first, last = index * BLOCK, min((index + 1) * BLOCK, size)
        whole = start <= first and last <= stop
        block = memory[first - start : last - start] if whole else memoryview(bytearray(last - first))
        _read(descriptor, block, stored.begin + first, path)
        if digest(block) != stored.digests[index]:
            raise CheckpointError(
                f"{path.name!r} in {str(path.parent)!r} is damaged: the {len(block)} bytes at {stored.begin + first} "
                "have another checksum than the bytes that were saved; load another tag, or an undamaged copy"
            )
        if not whole:
            lo, hi = max(first, start), min(last, stop)
            memory[lo - start : hi - start] = block[lo - first : hi - first]


def give_back(descriptor: int, begin: int, end: int) -> None:
    """Let the system forget its copy of what was read up to ``end``, if a window ends in these bytes.

    It then uses a few pages again and again. New pages cost a virtual machine up to four times as long as the read.
    """
    if begin // _WINDOW < end // _WINDOW:
        start = max(0, begin - _WINDOW)
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _read(descriptor: int, block: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(block):
        got = os.preadv(descriptor, [block[done:]], offset + done)
        if got == 0:
            raise CheckpointError(
                f"{path.name!r} in {str(path.parent)!r} ends after {offset + done} bytes, before the end of its "
                "values; load another tag, or a whole copy"
            )
        done += got
