"""zero.Init: the context in which a stage-3 model is constructed."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch


class Init:
    """Construction of a model; the arguments are DeepSpeed's."""

    def __init__(self, module: Any = None, *args: Any, enabled: bool = True, **kwargs: Any) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class OnDevice:
    """Construct a model on a device: ``with OnDevice(dtype=torch.bfloat16, device="meta")``."""

    def __init__(self, dtype: torch.dtype, device: str | torch.device = "meta", enabled: bool = True) -> None:
        self._dtype, self._device, self._enabled = dtype, torch.device(device), enabled

    def __enter__(self) -> None:
        if self._enabled:
            self._before = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
            self._device.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._device.__exit__(kind, error, trace)
            torch.set_default_dtype(self._before)
