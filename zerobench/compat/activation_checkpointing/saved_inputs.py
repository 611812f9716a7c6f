"""The inputs that checkpoints keep until backward runs their functions again."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.errors import ConfigError
from zerobench.engine.state.copies import to_device, to_host


def is_activation(value: Any) -> bool:
    """Whether a checkpoint's options are for this input; ``no_checkpointing`` excludes a tensor."""
    return isinstance(value, Tensor) and value.is_floating_point() and not getattr(value, "no_checkpointing", False)


class Ledger:
    """Bytes of the memory that holds inputs, by place: ``device``, or ``host`` for inputs that were moved there.

    Memory that several inputs share counts once, and whole.
    """

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._users: Counter[tuple[str, int]] = Counter()

    def hold(self, place: str, values: Tensor, owner: object) -> None:
        """Count the memory of the values as long as the owner lives."""
        storage = values.untyped_storage()
        key, size = (place, storage.data_ptr()), storage.nbytes()
        if not self._users[key]:
            self.now[place] += size
            self.most[place] = max(self.most[place], self.now[place])
        self._users[key] += 1
        weakref.finalize(owner, self._release, key, size)

    def _release(self, key: tuple[str, int], size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self.now[key[0]] -= size

    def restart(self) -> None:
        """Let the most begin at the bytes of now."""
        self.most = Counter(self.now)


#: Of all checkpoints of this process.
LEDGER = Ledger()


class SavedInput:
    """One activation.

    Args:
        values: as it is kept.
        host: whether it was moved to host memory.
        device: where the function needs it.
        requires_grad: of the function's input.
        copied: whether it is a copy, which an edit of the input in place does not reach.
    """

    def __init__(self, values: Tensor, host: bool, device: torch.device, requires_grad: bool, copied: bool) -> None:
        self._values, self._host, self._device, self._requires_grad = values, host, device, requires_grad
        self._version = None if copied else _version(values)
        LEDGER.hold("host" if host else "device", values, self)

    def restore(self) -> Tensor:
        """The function's input again.

        Raises:
            RuntimeError: it was edited in place.
        """
        values = self._values
        if self._version is not None and _version(values) != self._version:
            raise RuntimeError(
                f"an input of a checkpoint, of size {tuple(values.shape)}, was edited in place after the forward, and "
                "the backward would recompute from its new values; give the checkpoint a copy, or edit one"
            )
        if self._host:
            values = torch.empty_like(self._values, device=self._device)
            to_device(self._values, values, False)
        return values.detach().requires_grad_(self._requires_grad)


def _version(values: Tensor) -> int:
    """Torch's number of edits in place; tensors of inference mode have none."""
    return 0 if values.is_inference() else values._version


def on_host(values: Tensor) -> Tensor:
    """A copy in host memory."""
    host = torch.empty_like(values, device="cpu")
    to_host(values, host, False)
    return host


class Buffers:
    """The inputs of all checkpoints of a forward, position by position, each in one piece of memory."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}
        self._used: dict[int, int] = {}

    def take(self, position: int, values: Tensor, checkpoints: int, host: bool) -> Tensor:
        """A copy of the values in the buffer of this position, which has room for ``checkpoints`` of them.

        The buffer is in host memory if ``host`` is set, else on the device of the values.

        Raises:
            ConfigError: there are more checkpoints, or their inputs differ in size or dtype.
        """
        buffer = self._buffers.get(position)
        if buffer is None:
            device = "cpu" if host else values.device
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
        if host:
            to_host(values.reshape(-1), buffer[used], False)
        else:
            buffer[used].copy_(values.reshape(-1))
        return buffer[used].view(values.shape)
