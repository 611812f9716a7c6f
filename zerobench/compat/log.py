"""DeepSpeed's logger, by its name, so that callers set its level as they do with DeepSpeed."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

#: The names of levels in a configuration.
log_levels = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


class _Standard(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the standard output of the moment, which a caller may have redirected."""

    def __init__(self, level: int) -> None:
        super().__init__(sys.stdout)
        self.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


class LoggerFactory:
    """Makes loggers that write as DeepSpeed's does."""

    @staticmethod
    def create_logger(name: str | None = None, level: int = logging.WARNING) -> logging.Logger:
        """The logger of this name, with a handler.

        Raises:
            ValueError: the name is None.
        """
        if name is None:
            raise ValueError("name for logger cannot be None")
        made, handler = logging.getLogger(name), _Standard(level)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
        made.setLevel(level)
        made.propagate = False
        made.addHandler(handler)
        return made


logger: Any = logging.getLogger("DeepSpeed")  # with two methods more than a Logger
if not logger.handlers:
    LoggerFactory.create_logger("DeepSpeed", logging.WARNING)


def get_log_level_from_string(log_level_str: str) -> int:
    """A level by its name.

    Raises:
        ValueError: there is no such level.
    """
    if log_level_str.lower() not in log_levels:
        raise ValueError(f"there is no log level {log_level_str!r}; the levels are {', '.join(log_levels)}")
    return int(log_levels[log_level_str.lower()])


def set_log_level_from_string(log_level_str: str, custom_logger: logging.Logger | None = None) -> None:
    """Set the level of a logger and of its handlers, by default of DeepSpeed's logger."""
    level, named = get_log_level_from_string(log_level_str), custom_logger or logger
    for each in (named, *named.handlers):
        each.setLevel(level)


def get_current_level() -> int:
    """The logger's level."""
    return int(logger.getEffectiveLevel())


def should_log_le(max_log_level_str: str) -> bool:
    """Whether the logger's level is at most this one."""
    return get_current_level() <= get_log_level_from_string(max_log_level_str)


def _speaks(ranks: Sequence[int] | None) -> tuple[bool, int]:
    """Whether this rank is among the given ones, and which it is; every process speaks before ranks are known."""
    if not dist.is_initialized():
        return True, -1
    rank = dist.get_rank()
    return ranks is not None and (rank in ranks or next(iter(ranks), rank) == -1), rank


def get_dist_msg(message: str, ranks: Sequence[int] | None = None) -> str | None:
    """The message with its rank, on the ranks that :func:`log_dist` logs on; None on the others."""
    speaks, rank = _speaks(ranks)
    return f"[Rank {rank}] {message}" if speaks else None


def print_configuration(args: Any, name: str) -> None:
    """Log the attributes of an object at INFO."""
    logger.info("%s:", name)
    for each in sorted(vars(args)):
        logger.info("  %s %s %s", each, "." * (29 - len(each)), getattr(args, each))


def log_dist(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Log on the given ranks; -1 as the first stands for all of them, and without ranks none logs, as in DeepSpeed."""
    speaks, rank = _speaks(ranks)
    if speaks:
        logger.log(level, "[Rank %d] %s", rank, message)


def print_json_dist(message: dict[str, Any], ranks: Sequence[int] | None = None, path: str | None = None) -> None:
    """Write a file of JSON on the given ranks."""
    speaks, rank = _speaks(ranks)
    if speaks and path is not None:
        Path(path).write_text(json.dumps({**message, "rank": rank}), encoding="utf-8")


def print_dist(message: str, ranks: Sequence[int] | None = None) -> None:
    """Print on the given ranks, whatever the logger's level is."""
    text = get_dist_msg(message, ranks)
    if text is not None:
        print(text, flush=True)


def report(message: str, ranks: Sequence[int] = (0,)) -> None:
    """:func:`tell` on the given ranks."""
    text = get_dist_msg(message, ranks)
    if text is not None:
        tell(text)


def tell(line: str) -> None:
    """Log at INFO what a key of the configuration asks for, as DeepSpeed does, or print it if no handler takes it.

    DeepSpeed's logger and its own handler are at WARNING, so that the lines of ``steps_per_print`` would be lost.
    """
    if _heard(logging.INFO):
        logger.info(line)
    else:
        print(line, flush=True)


def _heard(level: int) -> bool:
    """Whether a handler takes the logger's records of this level."""
    each: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while each is not None:
        if any(handler.level <= level for handler in each.handlers):
            return True
        each = each.parent if each.propagate else None
    return False


@functools.cache
def _once(message: str, ranks: tuple[int, ...], level: int) -> None:
    log_dist(message, ranks, level)


def log_dist_once(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Log, unless the same message was logged before."""
    _once(message, tuple(ranks or ()), level)


def notice(message: str) -> None:
    """Log once, on rank 0 and at DeepSpeed's own level, what a caller must know: what has no effect, or another one."""
    log_dist_once(message, ranks=[0], level=logging.WARNING)


warning_once = logger.warning_once = functools.cache(logger.warning)
logger.log_dist_once = log_dist_once
