"""The ranks meet before they construct a model together: a rank that waits in vain raises instead of hanging.

They also leave words for each other, for calls that every rank makes with other arguments.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

#: Seconds until a rank that waits raises; the variable gives others.
LIMIT, VARIABLE = 300.0, "ZEROBENCH_ZERO_INIT_TIMEOUT"
#: Seconds between two looks at the store.
_PAUSE = 0.01
#: How often this rank has told or asked, by subject.
_times: Counter[str] = Counter()


def meet() -> None:
    """Wait until every rank has made this call as often as this one. It runs no collective of the process group.

    Raises:
        RuntimeError: some ranks have not come within the limit.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    store = _store()
    own = dist.get_rank()
    count = store.add(f"zero.Init/count/{own}", 1)
    store.set(f"zero.Init/{count}/{own}", "here")
    seconds = float(os.environ.get(VARIABLE, LIMIT))
    missing = _missing(store, count, time.monotonic() + seconds)
    if missing:
        store.add(f"zero.Init/count/{own}", -1)  # this call has not met the others
        raise RuntimeError(
            f"rank {own} constructs a model under zero.Init, and rank {', '.join(map(str, missing))} did not within "
            f"{seconds:g} s, but all ranks must, because each keeps a shard: call from_pretrained(), from_config() and "
            f"zero.Init on every rank, not only if rank == 0 ({VARIABLE} gives other seconds)"
        )


def _missing(store: Any, count: int, end: float) -> list[int]:
    """The ranks that have not made this call at the time ``end``; none as soon as all have."""
    missing = list(range(dist.get_world_size()))
    while True:
        missing = [rank for rank in missing if not store.check([f"zero.Init/{count}/{rank}"])]
        if not missing or time.monotonic() > end:
            return missing
        time.sleep(_PAUSE)


def tell(subject: str, word: str) -> None:
    """Leave a word for the ranks that ask about the subject for the same time. It waits for nobody."""
    _store().set(_next(subject), word)


def ask(subject: str) -> str | None:
    """The word that another rank leaves about the subject; None if it leaves none within the limit."""
    store, key = _store(), _next(subject)
    end = time.monotonic() + float(os.environ.get(VARIABLE, LIMIT))
    while not store.check([key]):
        if time.monotonic() > end:
            return None
        time.sleep(_PAUSE)
    word: str = store.get(key).decode()
    return word


def pass_over(subject: str) -> None:
    """Ask nothing this time, so that the next time belongs to the next word."""
    _next(subject)


def _next(subject: str) -> str:
    _times[subject] += 1
    return f"zero/{subject}/{_times[subject]}"


def _store() -> Any:
    return distributed_c10d._get_default_store()
