"""Calls torch.distributed.checkpoint, whose import takes long, and turns its errors into the engine's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from zerobench.engine.checkpoint.pieces import Piece, Range
from zerobench.engine.checkpoint.record import Record, TensorEntry
from zerobench.engine.checkpoint.shard_file import FileEntry
from zerobench.engine.checkpoint.together import combined, describe
from zerobench.engine.errors import CheckpointError

if TYPE_CHECKING:
    from zerobench.engine.checkpoint.storage import Write

Tables = tuple[dict[str, FileEntry], dict[str, TensorEntry]]


def save(folder: Path, pieces: Sequence[Piece], group: dist.ProcessGroup | None, write: Write) -> Tables | None:
    """Write all ranks' pieces to ``folder``, each rank's by ``write``. A collective.

    Returns:
        The tables of files and tensors on rank 0, None on the others.

    Raises:
        CheckpointError: a rank failed; the message names each rank's error.
    """
    from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

    from zerobench.engine.checkpoint.planners import PiecePlanner
    from zerobench.engine.checkpoint.storage import ShardWriter

    tables: list[Tables] = []
    writer = ShardWriter(folder, write, lambda *found: tables.append(found))
    with _errors():
        save_state_dict(
            {}, storage_writer=writer, planner=PiecePlanner(pieces), process_group=group, no_dist=group is None
        )
    return tables[0] if tables else None


def load(folder: Path, record: Record, memory: Mapping[Range, Tensor]) -> None:
    """Read ranges into their memory on the host; no message passes between the ranks, for each knows the record.

    Raises:
        CheckpointError: a file is missing, damaged or too short.
    """
    from torch.distributed.checkpoint.state_dict_loader import load as load_state_dict

    from zerobench.engine.checkpoint.planners import RangePlanner
    from zerobench.engine.checkpoint.storage import ShardReader

    reader, planner = ShardReader(folder, record), RangePlanner(memory)
    with _errors():
        load_state_dict({}, storage_reader=reader, planner=planner, no_dist=True)


@contextmanager
def _errors() -> Iterator[None]:
    """Without the warning that one process needs no group; errors of ranks as one CheckpointError."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            yield
    except CheckpointException as failure:
        found: Any = failure.failures
        reports = {rank: describe(error) for rank, (error, _) in found.items()}
        raise CheckpointError(combined(reports)) from failure
