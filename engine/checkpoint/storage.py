"""The storage of torch.distributed.checkpoint: a shard file for each rank, and the record in JSON; no pickle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.pieces import Range
from zerobench.engine.checkpoint.record import Chunk, Record, TensorEntry
from zerobench.engine.checkpoint.safetensors import DTYPES, dtype_name
from zerobench.engine.checkpoint.shard_file import FileEntry, Stored, opened

#: Writes a shard file, as shard_file.write does.
Write = Callable[[Path, Sequence[Range], Iterable[Tensor]], tuple[FileEntry, list[Stored]]]


class ShardWriter(StorageWriter):
    """Writes each rank's pieces to its own file; rank 0 passes the tables of files and tensors to ``finished``."""

    def __init__(
        self,
        folder: Path,
        write: Write,
        finished: Callable[[dict[str, FileEntry], dict[str, TensorEntry]], None],
    ) -> None:
        self.folder, self.write, self.finished = folder, write, finished

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Each plan with the name of its file."""
        return [replace(plan, storage_data=shard_file.name_of(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        ranges = [_range(item) for item in plan.items]
        values: Any = (planner.resolve_data(item) for item in plan.items)
        entry, stored = self.write(self.folder / plan.storage_data, ranges, values)
        found: Future[list[WriteResult]] = Future()
        found.set_result(
            [
                WriteResult(item.index, each.nbytes, (at, entry))
                for item, each, at in zip(plan.items, ranges, stored, strict=True)
            ]
        )
        return found

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored: dict[MetadataIndex, Stored] = {}
        files: dict[str, FileEntry] = {}
        for each in (result for rank in results for result in rank):
            stored[each.index], files[each.storage_data[0].file] = each.storage_data
        entries: Any = metadata.state_dict_metadata
        self.finished(files, {key: _entry(key, tensor, stored) for key, tensor in entries.items()})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _range(item: Any) -> Range:
    data = item.tensor_data
    return Range(item.index.fqn, data.chunk.offsets[0], data.chunk.sizes[0], data.size[0], data.properties.dtype)


def _entry(key: str, tensor: TensorStorageMetadata, stored: dict[MetadataIndex, Stored]) -> TensorEntry:
    chunks = []
    for chunk in tensor.chunks:
        at = stored[MetadataIndex(key, chunk.offsets)]
        chunks.append(
            Chunk(offset=chunk.offsets[0], elements=chunk.sizes[0], file=at.file, begin=at.begin, digests=at.digests)
        )
    return TensorEntry(dtype=dtype_name(tensor.properties.dtype, key), elements=tensor.size[0], chunks=tuple(chunks))


class ShardReader(StorageReader):
    """Reads ranges of the tensors of one checkpoint; every block read is checked."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.folder, self.record = folder, record

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({key: _metadata(tensor) for key, tensor in self.record.tensors.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        items: dict[str, list[tuple[ReadItem, Chunk]]] = {}
        for item in plan.items:
            chunk = self._chunk(item.storage_index)
            items.setdefault(chunk.file, []).append((item, chunk))
        for name, found in items.items():
            path = self.folder / name
            with opened(path) as descriptor:
                for item, chunk in found:
                    self._read(descriptor, path, item, chunk, planner)
                    if len(items) == 1:  # a rank that reads one file is likely to be its only reader
                        self._give_back(descriptor, item, chunk)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _chunk(self, index: MetadataIndex) -> Chunk:
        assert index.offset is not None
        return next(each for each in self.record.tensors[index.fqn].chunks if each.offset == index.offset[0])

    def _read(self, descriptor: int, path: Path, item: ReadItem, chunk: Chunk, planner: LoadPlanner) -> None:
        target = planner.resolve_tensor(item)
        size = self._size(item)
        stored = Stored(chunk.file, chunk.begin, chunk.digests)
        shard_file.read(descriptor, path, stored, chunk.elements * size, item.storage_offsets[0] * size, target)
        planner.commit_tensor(item, target)

    def _give_back(self, descriptor: int, item: ReadItem, chunk: Chunk) -> None:
        begin = chunk.begin + item.storage_offsets[0] * self._size(item)
        shard_file.give_back(descriptor, begin, begin + item.lengths[0] * self._size(item))

    def _size(self, item: ReadItem) -> int:
        """Bytes of an element."""
        return DTYPES[self.record.tensors[item.storage_index.fqn].dtype].itemsize

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _metadata(tensor: TensorEntry) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size([each.offset]), torch.Size([each.elements])) for each in tensor.chunks]
    return TensorStorageMetadata(TensorProperties(DTYPES[tensor.dtype]), torch.Size([tensor.elements]), chunks)
