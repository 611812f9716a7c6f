"""The inputs that checkpoints keep until backward runs their functions again."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor

from zerobench.engine.errors import ConfigError


def is_activation(value: Any) -> bool:
    """Whether a checkpoint's options are for this input; ``no_checkpointing`` excludes a tensor."""
    return isinstance(value, Tensor) and value.is_floating_point() and not getattr(value, "no_checkpointing", False)


class SavedInput:
    """One activation.

    Args:
        values: as it is kept.
        device: where the function needs it.
        requires_grad: of the function's input.
    """

    _living: ClassVar[weakref.WeakSet[SavedInput]] = weakref.WeakSet()

    def __init__(self, values: Tensor, device: torch.device, requires_grad: bool) -> None:
        self._values, self._device, self._requires_grad = values, device, requires_grad
        self._living.add(self)

    def restore(self) -> Tensor:
        """The function's input again."""
        return self._values.to(self._device).detach().requires_grad_(self._requires_grad)

    @classmethod
    def living(cls) -> dict[str, int]:
        """Bytes kept now, by kind of device; memory that several share counts once."""
        found: dict[str, dict[int, int]] = {}
        for each in cls._living:
            storage = each._values.untyped_storage()
            found.setdefault(each._values.device.type, {})[storage.data_ptr()] = storage.nbytes()
        return {kind: sum(sizes.values()) for kind, sizes in found.items()}


class Buffers:
    """The inputs of all checkpoints of a forward, position by position, each in one piece of memory."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}
        self._used: dict[int, int] = {}

    def take(self, position: int, values: Tensor, checkpoints: int, device: torch.device) -> Tensor:
        """A copy of the values in the buffer of this position, which has room for ``checkpoints`` of them.

        Raises:
            ConfigError: there are more checkpoints, or their inputs differ in size or dtype.
        """
        buffer = self._buffers.get(position)
        if buffer is None:
            buffer = torch.empty(checkpoints, values.numel(), dtype=values.dtype, device=device)
            self._buffers[position] = buffer
        used = self._used.get(position, 0)
        if used == len(buffer):
            raise ConfigError(
                f"a forward has more checkpoints than number_checkpoints, which is {checkpoints}; raise it, or call "
                "deepspeed.checkpointing.reset() after forwards without a backward"
            )
        if buffer.shape[1] != values.numel() or buffer.dtype != values.dtype:
            raise ConfigError(
                f"contiguous_memory_optimization needs checkpoints whose inputs are alike: input {position} has "
                f"{values.numel()} elements of {values.dtype}, and had {buffer.shape[1]} of {buffer.dtype}"
            )
        self._used[position] = used + 1
        return buffer[used].copy_(values.reshape(-1)).view(values.shape)
