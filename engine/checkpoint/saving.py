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
    own, found, folder = _begun(parts, directory, tag, client_state, latest=latest, frozen=frozen)
    ranks = parts.ranks
    with _discarding(ranks, [folder]):
        on_every_rank(ranks, lambda: _check_seen(folder))
        tables = distributed.save(folder, own, ranks.group, shard_file.write)
        on_every_rank(ranks, lambda: _finish(folder, tag, found, tables, latest=latest))


def start(
    parts: Parts, directory: Path, tag: str, client_state: dict[str, Any], *, latest: bool, frozen: bool
) -> PendingSave:
    """Copy the values, and write the copies in the background. A collective."""
    own, found, folder = _begun(parts, directory, tag, client_state, latest=latest, frozen=frozen)
    ranks = parts.ranks
    writing = BackgroundWrite(folder / shard_file.name_of(ranks.rank), own)

    def copy() -> None:
        _check_seen(folder)
        writing.copy()

    with _discarding(ranks, [folder]):
        on_every_rank(ranks, copy)
        writing.begin()

    def finish() -> None:
        with _discarding(ranks, [folder]):
            tables = distributed.save(folder, own, ranks.group, lambda *_: writing.written())
            on_every_rank(ranks, lambda: _finish(folder, tag, found, tables, latest=latest))

    return PendingSave(writing, finish)


def _begun(
    parts: Parts, directory: Path, tag: str, client_state: dict[str, Any], *, latest: bool, frozen: bool
) -> tuple[list[Piece], Contents, Path]:
    """This rank's pieces, the engine's progress, and the temporary folder, which rank 0 makes; all ranks are checked to
    save the same checkpoint. A collective."""
    arguments = json.dumps({"tag": tag, "save_latest": latest, "exclude_frozen_parameters": not frozen})
    made: list[Path] = []

    def begun() -> tuple[tuple[list[Piece], Contents], str]:
        names.checked_tag(tag)
        parts.stores.settle()
        found = owned_pieces(parts, frozen=frozen), contents(parts, client_state, frozen=frozen)
        if parts.ranks.rank == 0:
            made.append(names.begin(directory, tag))
        return found, json.dumps([arguments, made[0].name if made else ""])

    with _discarding(parts.ranks, made):
        (own, progress), texts = exchanged(parts.ranks, begun)
        given, folders = zip(*map(json.loads, texts), strict=True)
        _check_same(given)
    return own, progress, directory / folders[0]


@contextmanager
def _discarding(ranks: Ranks, made: Sequence[Path]) -> Iterator[None]:
    """Delete the temporary folder, if it is made by then, if an error ends the context."""
    try:
        yield
    except BaseException:
        for folder in made if ranks.rank == 0 else ():
            names.discard(folder)
        raise


def _check_same(texts: Sequence[str]) -> None:
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise CheckpointError(
                f"rank {rank} saves a checkpoint with {text}, and rank 0 with {texts[0]}; give every rank the same"
            )


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
