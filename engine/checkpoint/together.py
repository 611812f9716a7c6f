"""Work on all ranks that succeeds on all of them or raises on all of them."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.errors import CheckpointError

T = TypeVar("T")


def on_every_rank(ranks: Ranks, work: Callable[[], T]) -> T:
    """The result of ``work`` on this rank. A collective, so ``work`` must not issue one itself.

    Raises:
        CheckpointError: it raised on some rank; the message names each rank's error.
    """
    return exchanged(ranks, lambda: (work(), ""))[0]


def exchanged(ranks: Ranks, work: Callable[[], tuple[T, str]]) -> tuple[T, list[str]]:
    """Like :func:`on_every_rank`; ``work`` returns a text as well, and each rank receives those of all ranks, in rank
    order."""
    cause: Exception | None = None
    text = ""
    try:
        result, text = work()
    except Exception as error:  # noqa: BLE001 - any error of one rank is every rank's error
        cause = error
    reports = ranks.same_everywhere(json.dumps(["" if cause is None else describe(cause), text]))
    errors, texts = zip(*map(json.loads, reports), strict=True)
    failures = {rank: error for rank, error in enumerate(errors) if error}
    if failures:
        raise CheckpointError(combined(failures)) from cause
    return result, list(texts)


def describe(error: BaseException) -> str:
    """The message of an expected error, or the traceback of any other one."""
    return str(error) if isinstance(error, CheckpointError) else "".join(traceback.format_exception(error))


def combined(failures: Mapping[int, str]) -> str:
    """One message from those of several ranks; a message that they share appears once."""
    if len(set(failures.values())) == 1:
        return next(iter(failures.values()))
    return "\n".join(f"rank {rank}: {message}" for rank, message in sorted(failures.items()))
