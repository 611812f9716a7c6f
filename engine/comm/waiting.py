"""A rank that waits long for the other ranks in a call of all ranks says so, and where it waits."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger("zerobench.engine.comm")
#: Seconds after which a waiting rank says so.
PATIENCE = 60.0


@contextmanager
def told_if_long(rank: int) -> Iterator[None]:
    """The context of a collective of small messages; it changes nothing about its timeout."""
    timer = threading.Timer(PATIENCE, _tell, (rank, threading.get_ident()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(rank: int, thread: int) -> None:
    frame = sys._current_frames().get(thread)
    if frame is not None:
        _log.warning(
            "rank %d has waited %g s for the other ranks. Every rank must make this call, also if only one writes "
            "files; a call under `if rank == 0` waits until the process group's timeout:\n%s",
            rank,
            PATIENCE,
            "".join(traceback.format_stack(frame)),
        )
