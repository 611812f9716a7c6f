"""The state of the process that DeepSpeed changes: each engine has its own in place while it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import functional

#: torch_autocast.py keeps in these that an engine has been built with ``torch_autocast``, and its dtype.
_AUTOCAST = "TORCH_AUTOCAST_INITIALIZED", "TORCH_AUTOCAST_DTYPE"


class OwnProcess:
    """torch's linear function, which stage 3 replaces, and whether an engine with ``torch_autocast`` was built before.

    Other subjects alternate with an engine, and a process of the suite has many, one after another.
    """

    def __init__(self) -> None:
        from deepspeed.runtime import torch_autocast

        self._autocast = torch_autocast
        self._own: tuple[Any, ...] = (functional.linear, False, None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the state is the engine's."""
        before = self._exchanged(self._own)
        try:
            yield
        finally:
            self._own = self._exchanged(before)

    def _exchanged(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Put values in place; returns those that were there."""
        found = (functional.linear, *(getattr(self._autocast, name) for name in _AUTOCAST))
        functional.linear = values[0]
        for name, value in zip(_AUTOCAST, values[1:], strict=True):
            setattr(self._autocast, name, value)
        return found
