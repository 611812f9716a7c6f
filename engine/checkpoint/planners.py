"""The planners that torch.distributed.checkpoint asks which ranges of which tensors this rank saves or reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from zerobench.engine.checkpoint.pieces import Piece, Range


class PiecePlanner(SavePlanner):
    """Saves this rank's pieces, in their order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = {_index(piece.range): piece for piece in pieces}

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """Nothing to do."""

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_write_item(piece.range) for piece in self.pieces.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The plans as they are, and the chunks of every tensor in order."""
        chunks: dict[str, list[ChunkStorageMetadata]] = defaultdict(list)
        data = [(item.index.fqn, item.tensor_data) for plan in all_plans for item in plan.items]
        shapes = {key: (each.properties, each.size) for key, each in data if each is not None}
        for key, each in data:
            assert each is not None
            chunks[key].append(each.chunk)
        for found in chunks.values():
            found.sort(key=lambda chunk: chunk.offsets[0])
        tensors: Any = {key: TensorStorageMetadata(*shapes[key], chunks=found) for key, found in chunks.items()}
        return all_plans, Metadata(tensors)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self.pieces[write_item.index].values()


def _index(each: Range) -> MetadataIndex:
    return MetadataIndex(each.key, [each.offset])


def _write_item(each: Range) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size([each.offset]), torch.Size([each.length]))
    data = TensorWriteData(chunk, TensorProperties(each.dtype), torch.Size([each.elements]))
    return WriteItem(_index(each), WriteItemType.SHARD, tensor_data=data)


class RangePlanner(LoadPlanner):
    """Reads ranges of tensors into their memory, 1-dimensional on the host."""

    def __init__(self, memory: Mapping[Range, Tensor]) -> None:
        self.memory = memory
        self.ranges = {_index(each): each for each in memory}
        self._metadata: Metadata | None = None

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        assert self._metadata is not None
        items = []
        for index, each in self.ranges.items():
            tensor: Any = self._metadata.state_dict_metadata[each.key]
            items += [item for chunk in tensor.chunks if (item := _read_item(index, each, chunk)) is not None]
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise NotImplementedError("a checkpoint holds tensors only")

    def resolve_bytes(self, read_item: ReadItem) -> Any:
        raise NotImplementedError("a checkpoint holds tensors only")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The memory for a part of a range."""
        start = read_item.dest_offsets[0]
        return self.memory[self.ranges[read_item.dest_index]][start : start + read_item.lengths[0]]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing to do: the values were read into their memory."""


def _read_item(index: MetadataIndex, each: Range, chunk: ChunkStorageMetadata) -> ReadItem | None:
    """The part of a range in a chunk; None if there is none."""
    start, stop = chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]
    lo, hi = max(each.offset, start), min(each.offset + each.length, stop)
    if lo >= hi:
        return None
    source = MetadataIndex(each.key, [start])
    sizes = (torch.Size([n]) for n in (lo - each.offset, lo - start, hi - lo))
    into, out_of, lengths = sizes
    return ReadItem(LoadItemType.TENSOR, index, into, source, out_of, lengths)
