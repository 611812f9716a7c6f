"""Saving: all ranks write their pieces, rank 0 writes the record and gives the checkpoint its name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import distributed, record, shard_file
from zerobench.engine.checkpoint.background import BackgroundWrite, PendingSave
from zerobench.engine.checkpoint.distributed import Tables
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import Piece, owned_pieces
from zerobench.engine.checkpoint.progress import contents
from zerobench.engine.checkpoint.record import Contents, Record
from zerobench.engine.checkpoint.together import exchanged, on_every_rank
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.errors import CheckpointError

_log = logging.getLogger("zerobench.engine.checkpoint")


def save(parts: Parts, directory: Path, tag: str, client_state: dict[str, Any], *, latest: bool, frozen: bool) -> None:
    """Save a checkpoint; see Engine.save_checkpoint. A collective."""
    own, found = _gathered(parts, tag, client_state, latest=latest, frozen=frozen)
    ranks = parts.ranks
    folder = _begin(ranks, directory, tag)
    with _discarding(ranks, folder):
        on_every_rank(ranks, lambda: _check_seen(folder))
        tables = distributed.save(folder, own, ranks.group, shard_file.write)
        on_every_rank(ranks, lambda: _finish(folder, tag, found, tables, latest=latest))


def start(
    parts: Parts, directory: Path, tag: str, client_state: dict[str, Any], *, latest: bool, frozen: bool
) -> PendingSave:
    """Copy the values, and write the copies in the background. A collective."""
    own, found = _gathered(parts, tag, client_state, latest=latest, frozen=frozen)
    ranks = parts.ranks
    folder = _begin(ranks, directory, tag)
    writing = BackgroundWrite(folder / shard_file.name_of(ranks.rank), own)

    def copy() -> None:
        _check_seen(folder)
        writing.copy()

    with _discarding(ranks, folder):
        on_every_rank(ranks, copy)
        writing.begin()

    def finish() -> None:
        with _discarding(ranks, folder):
            tables = distributed.save(folder, own, ranks.group, lambda *_: writing.written())
            on_every_rank(ranks, lambda: _finish(folder, tag, found, tables, latest=latest))

    return PendingSave(writing, finish)


def _gathered(
    parts: Parts, tag: str, client_state: dict[str, Any], *, latest: bool, frozen: bool
) -> tuple[list[Piece], Contents]:
    """This rank's pieces and the engine's progress, after a check that all ranks save the same checkpoint."""
    arguments = json.dumps({"tag": tag, "save_latest": latest, "exclude_frozen_parameters": not frozen})

    def gathered() -> tuple[tuple[list[Piece], Contents], str]:
        names.checked_tag(tag)
        parts.stores.settle()
        return (owned_pieces(parts, frozen=frozen), contents(parts, client_state, frozen=frozen)), arguments

    found, texts = exchanged(parts.ranks, gathered)
    _check_same(texts)
    return found


@contextmanager
def _discarding(ranks: Ranks, folder: Path) -> Iterator[None]:
    """Delete the temporary folder if an error ends the context."""
    try:
        yield
    except BaseException:
        if ranks.rank == 0:
            names.discard(folder)
        raise


def _check_same(texts: Sequence[str]) -> None:
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise CheckpointError(f"rank {rank} saves a checkpoint with {text}, and rank 0 with {texts[0]}")


def _begin(ranks: Ranks, directory: Path, tag: str) -> Path:
    """The temporary folder, which rank 0 makes. A collective."""
    _, [made, *_] = exchanged(ranks, lambda: (None, names.begin(directory, tag).name if ranks.rank == 0 else ""))
    return directory / made


def _check_seen(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{str(folder)!r}, which rank 0 made, does not exist here; all ranks must save to one directory, on a file "
            "system that they share"
        )


def _finish(folder: Path, tag: str, found: Contents, tables: Tables | None, *, latest: bool) -> None:
    """On rank 0: write the record and publish the folder."""
    if tables is None:
        return
    files, tensors = tables
    complete = Record(
        format="zerobench checkpoint",
        version=1,
        written_by=record.writer(),
        tag=tag,
        contents=found,
        files=files,
        tensors=tensors,
    )
    complete.check_layout(folder)
    record.write(folder, complete)
    names.publish(folder, tag)
    if latest:
        names.write_latest(folder.parent, tag)
    report_leftovers(folder.parent)


def report_leftovers(directory: Path) -> None:
    """Log the names of temporary folders, which no load reads."""
    left = names.leftovers(directory)
    if left:
        _log.warning(
            "%s has %s, of saves that were killed or that are running; delete them if no save is running",
            directory,
            ", ".join(left),
        )
