"""DeepSpeed's configuration: honoured, without effect, or refused; ``auto`` resolved; DeepSpeed's defaults."""

from zerobench.compat.config.settings import Settings, resolve

__all__ = ["Settings", "resolve"]
