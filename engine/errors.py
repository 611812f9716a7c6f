"""The engine's errors."""

from __future__ import annotations


class ConfigError(ValueError):
    """The configuration or the model cannot be used; the message names the given value and the remedy."""


class RankMismatch(RuntimeError):
    """The ranks of one process group were given different models or different configurations."""


class KernelError(RuntimeError):
    """The native kernels cannot be built, loaded or started; the message names the remedy."""


class OffloadError(RuntimeError):
    """A file of offloaded states could not be written or read, or its content is not the content written."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or loaded; a load that raises it has not changed the engine."""
