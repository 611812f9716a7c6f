"""Saving: all ranks write their pieces, rank 0 writes the record and gives the checkpoint its name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import distributed, record
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import pieces
from zerobench.engine.checkpoint.progress import contents
from zerobench.engine.checkpoint.record import Contents, Record
from zerobench.engine.checkpoint.together import together
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.errors import CheckpointError

_log = logging.getLogger("zerobench.engine.checkpoint")


def save(parts: Parts, directory: Path, tag: str, client_state: dict[str, Any], *, latest: bool, frozen: bool) -> None:
    """Save a checkpoint; see Engine.save_checkpoint. A collective."""
    parts.stores.settle()
    ranks = parts.ranks
    found = together(ranks, lambda: contents(parts, client_state, frozen=frozen))
    _check_same(ranks, {"tag": tag, "save_latest": latest, "exclude_frozen_parameters": not frozen})
    own = together(ranks, lambda: pieces(parts, frozen=frozen))
    write(ranks, directory, tag, own, found, latest=latest)


def write(ranks: Ranks, directory: Path, tag: str, own: list[Any], found: Contents, *, latest: bool) -> None:
    """Write the pieces and the record to a temporary folder, and publish it. A collective."""
    folder = _begin(ranks, directory, tag)
    try:
        tables = distributed.save(folder, own, ranks.group)
        together(ranks, lambda: _finish(folder, tag, found, tables, latest=latest))
    except BaseException:
        if ranks.rank == 0:
            names.discard(folder)
        raise


def _check_same(ranks: Ranks, arguments: dict[str, Any]) -> None:
    texts = ranks.same_everywhere(json.dumps(arguments))
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise CheckpointError(f"rank {rank} saves a checkpoint with {text}, and rank 0 with {texts[0]}")


def _begin(ranks: Ranks, directory: Path, tag: str) -> Path:
    """The temporary folder, which rank 0 makes and every rank must see. A collective."""
    made = together(ranks, lambda: names.begin(directory, tag).name if ranks.rank == 0 else "")
    folder = directory / ranks.same_everywhere(made)[0]
    together(ranks, lambda: _seen(folder))
    return folder


def _seen(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{str(folder)!r}, which rank 0 made, does not exist here; all ranks must save to one directory, on a file "
            "system that they share"
        )


def _finish(folder: Path, tag: str, found: Contents, tables: distributed.Tables | None, *, latest: bool) -> None:
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
