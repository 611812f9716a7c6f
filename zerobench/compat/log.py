"""DeepSpeed's logger, by its name, so that callers set its level as they do with DeepSpeed."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

#: The names of levels in a configuration.
log_levels = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


class _Standard(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the standard output of the moment, which a caller may have redirected."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


logger: Any = logging.getLogger("DeepSpeed")  # with two methods more than a Logger
if not logger.handlers:
    logger.setLevel(logging.INFO)
    logger.propagate = False
    _handler = _Standard()
    _handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
    logger.addHandler(_handler)


def set_log_level_from_string(log_level_str: str) -> None:
    """Set the logger's level.

    Raises:
        ValueError: there is no such level.
    """
    if log_level_str.lower() not in log_levels:
        raise ValueError(f"there is no log level {log_level_str!r}; the levels are {', '.join(log_levels)}")
    logger.setLevel(log_levels[log_level_str.lower()])


def _speaks(ranks: Sequence[int] | None) -> tuple[bool, int]:
    """Whether this rank is among the given ones, and which it is."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return not ranks or rank in ranks or -1 in ranks, rank


def log_dist(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Log on the given ranks; -1, or none given, stands for all of them."""
    speaks, rank = _speaks(ranks)
    if speaks:
        logger.log(level, "[Rank %d] %s", rank, message)


def print_dist(message: str, ranks: Sequence[int] | None = None) -> None:
    """Print on the given ranks, whatever the logger's level is."""
    speaks, rank = _speaks(ranks)
    if speaks:
        print(f"[Rank {rank}] {message}", flush=True)


@functools.cache
def _once(message: str, ranks: tuple[int, ...], level: int) -> None:
    log_dist(message, ranks, level)


def log_dist_once(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Log, unless the same message was logged before."""
    _once(message, tuple(ranks or ()), level)


logger.warning_once = functools.cache(logger.warning)
logger.log_dist_once = log_dist_once
