"""Errors that are also of the classes that DeepSpeed raises, so that a script's ``except`` catches both engines'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zerobench.engine.errors import CheckpointError, ConfigError


class SettingsError(ConfigError, AssertionError, TypeError):
    """Of a configuration or an argument: DeepSpeed raises a ValueError or an AssertionError.

    For a parameter that a schedule or an optimizer does not take, DeepSpeed raises Python's TypeError.
    """


class MissingCheckpoint(CheckpointError, AssertionError):
    """Of ``load_checkpoint()``: DeepSpeed raises an AssertionError."""


class SavingError(CheckpointError, AssertionError):
    """Of ``save_checkpoint()``: DeepSpeed raises an AssertionError if the ranks give different tags."""


class MissingWeights(CheckpointError, FileNotFoundError, ValueError):
    """Of a checkpoint that is read without an engine: DeepSpeed raises a FileNotFoundError or a ValueError."""


class LossError(ValueError, AssertionError):
    """A loss that has no backward: DeepSpeed raises an AssertionError."""


class CallError(RuntimeError, AssertionError):
    """A call that its stage, its place or its argument forbids: DeepSpeed raises an AssertionError."""


class MissingLibrary(SettingsError, ImportError):
    """The library of an enabled monitor is not installed: DeepSpeed raises an ImportError."""


@contextmanager
def raised_as(kind: type[ConfigError | CheckpointError]) -> Iterator[None]:
    """Raise the engine's errors of a configuration or a checkpoint as those of ``kind``."""
    try:
        yield
    except (ConfigError, CheckpointError) as error:
        if not issubclass(kind, type(error)):
            raise
        raise kind(*error.args) from error.__cause__
