"""checkpoint.json: everything about a checkpoint but its values, under a checksum, checked by a schema."""

from __future__ import annotations

import importlib.metadata
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import xxhash
from pydantic import Field, ValidationError

from zerobench.engine.checkpoint.directory import check_size, failed, write_new
from zerobench.engine.checkpoint.safetensors import DTYPES
from zerobench.engine.checkpoint.shard_file import BLOCK, FileEntry, opened
from zerobench.engine.errors import CheckpointError
from zerobench.engine.section import Section

FILE = "checkpoint.json"
FORMAT = "zerobench checkpoint"
#: Of the format; a reader refuses any other.
VERSION = 1

Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
FileName = Annotated[str, Field(pattern=r"^rank-\d{5}\.safetensors$")]


class Chunk(Section):
    """``elements`` elements of a tensor from ``offset`` on: at byte ``begin`` of a file, with its blocks' checksums."""

    offset: Count
    elements: Annotated[int, Field(gt=0)]
    file: FileName
    begin: Count
    digests: tuple[Digest, ...]


class TensorEntry(Section):
    """A tensor: its chunks follow each other and have all its elements."""

    dtype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    elements: Annotated[int, Field(gt=0)]
    chunks: tuple[Chunk, ...]


class ParameterEntry(Section):
    """A parameter; ``stride`` gives the order of its elements in its tensors."""

    shape: tuple[Count, ...]
    stride: tuple[Count, ...]
    trained: bool


class BufferEntry(Section):
    """A persistent buffer; its elements are in row-major order."""

    shape: tuple[Count, ...]
    dtype: str


class GroupEntry(Section):
    """A parameter group: its parameters' names and its hyperparameters (see plain.py)."""

    parameters: tuple[str, ...]
    options: dict[str, Any]


class OptimizerEntry(Section):
    """The optimizer's rule, the names of its states, its groups, and the steps of each parameter."""

    rule: str
    states: tuple[str, ...]
    groups: tuple[GroupEntry, ...]
    steps: dict[str, Count]


class ScalerEntry(Section):
    """The loss scaler's state."""

    scale: float
    step: Count
    last_overflow: int
    hysteresis: int


class ScheduleEntry(Section):
    """The learning rate schedule: its class and its state (see plain.py)."""

    type: str
    state: Any


class Contents(Section):
    """The part of the record that the engine gives; counters are in optimizer steps, if their name says no other."""

    world: Annotated[int, Field(gt=0)]
    dtype: Literal["fp32", "bf16", "fp16"]
    parameters: dict[str, ParameterEntry]
    tied: dict[str, str]  # other names of parameters and buffers, each with the name in ``parameters`` or ``buffers``
    buffers: dict[str, BufferEntry]
    frozen: bool  # the values of frozen parameters are in it
    optimizer: OptimizerEntry
    loss_scaler: ScalerEntry
    lr_scheduler: ScheduleEntry | None
    global_steps: Count
    skipped_steps: Count
    #: None in DeepSpeed's layout, which does not have them.
    micro_steps: Count | None = None
    gradient_accumulation_steps: Count | None = None
    client_state: dict[str, Any]
    #: Of modules by name, as rank 0 has them (see extra_states.py); older checkpoints have none.
    extra_states: dict[str, Any] = Field(default_factory=dict)


class Record(Section):
    """A complete record."""

    format: Literal["zerobench checkpoint"]
    version: Literal[1]
    written_by: str
    tag: str
    contents: Contents
    files: dict[FileName, FileEntry]
    tensors: dict[str, TensorEntry]

    def check_layout(self, folder: Path) -> None:
        """Check that each tensor's chunks cover it once and lie in the files.

        Raises:
            CheckpointError: they do not.
        """
        for key, tensor in self.tensors.items():
            ends = [(chunk.offset, chunk.offset + chunk.elements) for chunk in tensor.chunks]
            joined = all(before[1] == after[0] for before, after in pairwise(ends))
            whole = joined and ends and (ends[0][0], ends[-1][1]) == (0, tensor.elements)
            if not whole or not all(self._fits(chunk, tensor) for chunk in tensor.chunks):
                raise CheckpointError(f"{FILE!r} in {str(folder)!r} is wrong: the chunks of {key!r} are not the tensor")

    def _fits(self, chunk: Chunk, tensor: TensorEntry) -> bool:
        size = chunk.elements * DTYPES[tensor.dtype].itemsize
        file = self.files.get(chunk.file)
        within = file is not None and file.header_bytes <= chunk.begin and chunk.begin + size <= file.bytes
        return within and len(chunk.digests) == -(-size // BLOCK)

    def check_files(self, folder: Path, first: int = 0, every: int = 1) -> None:
        """Check the sizes of every ``every``-th file from the one of number ``first`` on."""
        for name in sorted(self.files)[first::every]:
            check_size(folder / name, self.files[name].bytes)


def write(folder: Path, record: Record) -> None:
    """Write the record to a new file and wait until it is on the drive."""
    rest = record.model_dump_json(exclude_unset=False).removeprefix("{")
    write_new(folder / FILE, _first_line(rest.encode()) + rest.encode())


def read(folder: Path) -> Record:
    """The record of a checkpoint.

    Raises:
        CheckpointError: there is none, its checksum is wrong, or it is not of this format and version.
    """
    path = folder / FILE
    raw = _parsed(path, _content(path))
    if raw.get("format") != FORMAT:
        raise CheckpointError(f"{str(path)!r} has the format {raw.get('format')!r}, not {FORMAT!r}")
    if raw.get("version") != VERSION:
        raise CheckpointError(
            f"{str(path)!r} has version {raw.get('version')!r} of the format, and this engine reads version {VERSION}; "
            f"it was written by {raw.get('written_by')!r}: load it with that release"
        )
    raw.pop("digest")
    try:
        record = Record.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{str(path)!r} is no record of a checkpoint: {where}: {first['msg']}") from None
    record.check_layout(folder)
    return record


def writer() -> str:
    """This program and its version."""
    try:
        version = importlib.metadata.version("zerobench")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        version = "of a checkout"
    return f"zerobench {version}, torch {torch.__version__}"


def digest_of(folder: Path) -> str:
    """The checksum of the record, which identifies the checkpoint."""
    return xxhash.xxh3_128_hexdigest(_content(folder / FILE))


def _content(path: Path) -> bytes:
    with opened(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    line, newline, rest = content.partition(b"\n")
    if line + newline != _first_line(rest):
        raise CheckpointError(
            f"{str(path)!r} is damaged: its content has another checksum than the one in its first line; load another "
            "tag, or an undamaged copy"
        )
    with failed(f"read {str(path)!r}"):
        try:
            raw = json.loads(content)
        except ValueError as error:
            raise CheckpointError(f"{str(path)!r} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{str(path)!r} holds no JSON object")
    return raw


def _first_line(rest: bytes) -> bytes:
    """The start of the JSON object, with the checksum of the rest of the file."""
    return b'{"digest":"' + xxhash.xxh3_128_hexdigest(rest).encode() + b'",\n'
