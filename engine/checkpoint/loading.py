"""Loading: find and check a checkpoint, read all values into host memory, and only then change the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import record
from zerobench.engine.checkpoint.apply import Values, set_states
from zerobench.engine.checkpoint.deepspeed.files import is_deepspeed
from zerobench.engine.checkpoint.deepspeed.reading import DeepSpeedSource
from zerobench.engine.checkpoint.extra_states import restore_extra_states
from zerobench.engine.checkpoint.matching import Choice, Want, check, wants
from zerobench.engine.checkpoint.memory import memory_for
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import Range
from zerobench.engine.checkpoint.progress import restore_counters, restore_optimizer, restore_schedule
from zerobench.engine.checkpoint.record import Contents
from zerobench.engine.checkpoint.rng import restore_rng
from zerobench.engine.checkpoint.safetensors import DTYPES
from zerobench.engine.checkpoint.source import OwnSource, Source
from zerobench.engine.checkpoint.together import exchanged, on_every_rank
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.errors import CheckpointError

_log = logging.getLogger("zerobench.engine.checkpoint")


def load(
    parts: Parts,
    directory: Path,
    tag: str | None,
    choice: Choice,
    changing: Callable[[], AbstractContextManager[None]],
) -> tuple[str | None, dict[str, Any]]:
    """Load a checkpoint; see Engine.load_checkpoint. A collective.

    The engine changes within ``changing`` only, after every rank has read and checked all that it needs.
    """
    folder = _find(parts.ranks, directory, tag)
    if folder is None:
        return None, {}
    saved = _source(parts, folder)
    client_state = saved.client_state
    found = on_every_rank(parts.ranks, lambda: _chosen(parts, saved, choice))
    generators = _generators(parts, saved, choice)
    memory = memory_for(parts, found, generators)
    on_every_rank(parts.ranks, lambda: saved.read(memory))
    with changing():
        set_states(parts, {want.into: Values(want.source.offset, memory[want.source]) for want in found})
        restore_extra_states(parts.module, saved.contents.extra_states)
        if not choice.module_only:
            _restore(parts, saved.contents, choice)
            restore_rng({_name(each): memory[each] for each in generators}, parts.device)
    return str(folder), client_state


def _find(ranks: Ranks, directory: Path, tag: str | None) -> Path | None:
    """The folder of the tag, or of the latest tag as rank 0 reads it; None if there is no latest tag. A collective."""
    if tag is None:
        _, [tag, *_] = exchanged(ranks, lambda: (None, names.read_latest(directory) or "" if ranks.rank == 0 else ""))
        if not tag:
            _log.warning("%s has no file 'latest', so nothing is loaded; to load a checkpoint, pass its tag", directory)
            return None
    chosen = tag
    return on_every_rank(ranks, lambda: names.folder_of(directory, chosen))


def _source(parts: Parts, folder: Path) -> Source:
    """The checkpoint, the same one on all ranks, with all its files there. A collective."""
    saved, identities = exchanged(parts.ranks, lambda: _opened(parts, folder))
    if len(set(identities)) > 1:
        raise CheckpointError(
            f"{str(folder)!r} changed while it was loaded, or the ranks see different ones; load again"
        )
    return saved


def _opened(parts: Parts, folder: Path) -> tuple[Source, str]:
    """The checkpoint and a text that identifies it; this rank checks a part of the files."""
    if is_deepspeed(folder):
        foreign = DeepSpeedSource(folder, parts)
        return foreign, foreign.identity
    saved, digest = record.read(folder), record.digest_of(folder)
    saved.check_files(folder, parts.ranks.rank, parts.ranks.world)
    return OwnSource(folder, saved), digest


def _chosen(parts: Parts, saved: Source, choice: Choice) -> list[Want]:
    check(parts, saved.contents, choice)
    return wants(parts, saved, choice)


def _generators(parts: Parts, saved: Source, choice: Choice) -> list[Range]:
    """The states of this rank's random number generators, if the checkpoint has as many ranks."""
    if choice.module_only or saved.contents.world != parts.ranks.world:
        return []
    found = {key: entry for key, entry in saved.tensors.items() if key.startswith(f"rng.{parts.ranks.rank}.")}
    return [Range(key, 0, each.elements, each.elements, DTYPES[each.dtype]) for key, each in found.items()]


def _name(generator: Range) -> str:
    return generator.key.rpartition(".")[2]


def _restore(parts: Parts, saved: Contents, choice: Choice) -> None:
    restore_counters(parts, saved)
    if choice.optimizer:
        restore_optimizer(parts, saved)
    if choice.schedule:
        restore_schedule(parts, saved)
