"""Work on all ranks that succeeds on all of them or raises on all of them."""

from __future__ import annotations

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
    cause: Exception | None = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - any error of one rank is every rank's error
        cause = error
    reports = ranks.same_everywhere("" if cause is None else describe(cause))
    failures = {rank: report for rank, report in enumerate(reports) if report}
    if failures:
        raise CheckpointError(combined(failures)) from cause
    return result


def describe(error: BaseException) -> str:
    """The message of an expected error, or the traceback of any other one."""
    return str(error) if isinstance(error, CheckpointError) else "".join(traceback.format_exception(error))


def combined(failures: Mapping[int, str]) -> str:
    """One message from those of several ranks; a message that they share appears once."""
    if len(set(failures.values())) == 1:
        return next(iter(failures.values()))
    return "\n".join(f"rank {rank}: {message}" for rank, message in sorted(failures.items()))
