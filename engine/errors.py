"""The engine's errors."""

from __future__ import annotations


class ConfigError(ValueError):
    """The configuration or the model cannot be used as given; the message says what was given and what to do."""


class RankMismatch(RuntimeError):
    """The ranks of one process group were given different models or different configurations."""


class KernelError(RuntimeError):
    """The native kernels cannot be built, loaded or started; the message says what to do."""


class OffloadError(RuntimeError):
    """A file of offloaded states could not be written or read, or does not hold what was written to it."""
