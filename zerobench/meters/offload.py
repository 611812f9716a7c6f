"""OffloadMeter: bytes between device, host and files.

Between device and host they are counted at torch's dispatcher: an engine's copies are operators called ``to_host`` and
``to_device``. If the machine has no GPU, only these names distinguish such a copy from any other. Between host and
files they are counted at ``os.preadv`` and ``os.pwritev``, by the byte counts that the system returns.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from threading import Lock
from types import TracebackType
from typing import Any, Self
from unittest import mock

from torch._ops import OpOverload

from zerobench.dispatch import DispatchMode

_COPIES = {"zerobench::to_host": "to_host", "zerobench::to_device": "to_device"}
_FILES = {"preadv": "file_read", "pwritev": "file_written"}


class OffloadMeter:
    """Counts the bytes moved inside the ``with`` block, in ``bytes``: ``to_host``, ``to_device``, ``file_read``,
    ``file_written``.

    Copies are seen in the thread that entered the block and in its autograd threads, file operations in any thread.
    """

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self._lock = Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(_Copies(self._add))
        for name, moved in _FILES.items():
            self._stack.enter_context(mock.patch.object(os, name, self._counting(getattr(os, name), moved)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _counting(self, call: Callable[..., int], moved: str) -> Callable[..., int]:
        def counted(*args: Any) -> int:
            size = call(*args)
            self._add(moved, size)
            return size

        return counted

    def _add(self, moved: str, size: int) -> None:
        with self._lock:
            self.bytes[moved] += size


class _Copies(DispatchMode):
    def __init__(self, add: Callable[[str, int], None]) -> None:
        super().__init__()
        self._add = add

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if moved := _COPIES.get(func._schema.name):
            self._add(moved, args[0].nbytes)
        return func(*args, **(kwargs or {}))
