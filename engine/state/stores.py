"""Stores: the two interfaces to the states that a rank owns, on any medium.

The rest of the engine gets the slices to update from a unit's OptimizerStore and the shard to gather from its
ParameterStore, and does not depend on their medium.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Handle
from zerobench.engine.state.portion import Portion

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class UpdateSlice:
    """A sub-group of one unit, open for the update: its tensors hold elements [start, stop) of the unit's extent.

    All tensors are on one device, and the update runs on that device.
    """

    start: int
    stop: int
    gradient: Tensor  # the sum over all leaves
    master: Tensor  # fp32
    optimizer: Sequence[Tensor]  # fp32, in the order of the optimizer's state names
    parameter: Tensor | None  # receives the master rounded to the training dtype; None if it is the master

    def follow(self, start: int, stop: int) -> None:
        """Set the parameters of elements [start, stop) of the extent, which have no update, to the rounded masters."""
        here = slice(start - self.start, stop - self.start)
        if self.parameter is not None and start < stop:
            self.parameter[here].copy_(self.master[here])


class ParameterStore(ABC):
    """Keeps this rank's own part of one unit's parameters; positions count from the start of the unit's extent.

    An update writes new values to :meth:`view`, or passes them to :meth:`accept` if its side has no view.
    """

    def prefetch(self) -> None:
        """Prepare for a :meth:`load` that follows soon."""

    @abstractmethod
    def load(self) -> Tensor:
        """The shard to send, [unit.shard] on the device; callers must not write to it: it may be the store's memory."""

    @abstractmethod
    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        """The parameters' own memory of [start, stop), for new values, if it is on that side; else None."""

    @abstractmethod
    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        """Take new values on that side, from ``start`` on; the handle waits until the store has read them.

        The caller passes the values of one step in order and without gaps.
        """

    def memory(self) -> Tensor | None:
        """The shard's own memory on the device or the host; None if it is on neither."""
        return None

    @contextmanager
    def edit(self) -> Iterator[Tensor]:
        """Yield a copy of the shard, and store it at the end of the context if it has changed."""
        values = self.load().clone()
        before = values.clone()
        yield values
        if not same_bits(before, values):
            self.accept(0, values, host=False).wait()


class OptimizerStore(ABC):
    """Owns the final gradient sum, the master and the optimizer states of the units that a rank steps.

    The protocol: the engine adopts each unit once. In each step it passes the unit's gradient sum to :meth:`take` in
    ranges, then calls :meth:`sums` once, and then opens the states with :meth:`update_slices`. It may call these for
    units in any order. If a store reads ahead, it does so in the order of adoption, which is then the fastest order.
    Between steps, states are read and edited through copies only.

    Args:
        names: the optimizer states, in the optimizer's order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    @abstractmethod
    def adopt(self, portion: Portion, parameters: ParameterStore, master: Tensor, gradient: Tensor) -> None:
        """Take over a unit's states, and start its optimizer states at zero.

        Args:
            portion: the unit.
            parameters: receives the updated parameters.
            master: fp32 over the extent, on the device.
            gradient: the accumulator on the device; the sum stays there, or the store takes it from there.
        """

    @abstractmethod
    def take(self, portion: Portion, start: int, stop: int, total: Tensor) -> None:
        """Take ``total``, the final gradient sum of this step for elements [start, stop) of this rank's shard.

        The caller passes the ranges of one unit in order and without gaps.
        """

    def retake(self, portion: Portion, start: int, total: Tensor) -> None:
        """Replace whole chunks of the sum that it has taken, from ``start`` of the shard on; in any order."""
        self.take(portion, start, start + total.numel(), total)

    def rounded(self, total: Tensor) -> Tensor:
        """A sum as the store keeps it."""
        return total

    @abstractmethod
    def sums(self, portion: Portion) -> Tensor:
        """The sums of squares of the gradient chunks that this rank owns, fp64, on the device; called once a step."""

    @abstractmethod
    def update_slices(self, portion: Portion) -> Iterator[UpdateSlice]:
        """The unit's sub-groups in order; the caller updates each before it requests the next."""

    @abstractmethod
    def read(self, portion: Portion, name: str, start: int, stop: int) -> Tensor:
        """A copy of elements [start, stop) on the device.

        ``name`` is ``gradient`` (positions in the shard), ``master`` or an optimizer state (positions in the extent).
        """

    @abstractmethod
    def write(self, portion: Portion, name: str, start: int, values: Tensor) -> None:
        """Replace elements of a state, from ``start`` on, with ``values``; see :meth:`read`. The parameters stay.

        The gradient sum is replaced by :meth:`retake`.
        """

    def editing(self) -> AbstractContextManager[None]:
        """Within it, edits of neighbouring elements may be written together; they are written when it ends."""
        return nullcontext()

    def replace(self, portion: Portion, name: str, memory: Tensor) -> bool:
        """Use ``memory``, fp32 over the extent in host memory, as that of the master or an optimizer state.

        The parameters stay.

        Returns:
            Whether the store does; it cannot if it keeps this state elsewhere.
        """
        return False

    @contextmanager
    def edit_master(self, portion: Portion, start: int, stop: int) -> Iterator[Tensor]:
        """Yield a copy of the master's elements [start, stop), and write it back at the end if it has changed."""
        values = self.read(portion, "master", start, stop)
        before = values.clone()
        yield values
        if not same_bits(before, values):
            self.write(portion, "master", start, values)

    def memory(self, portion: Portion) -> dict[str, Tensor]:
        """The memory, on the device or the host, of the unit's master and optimizer states, by name."""
        return {}

    def host(self) -> dict[str, list[Tensor]]:
        """The host memory that the store uses, by purpose."""
        return {}

    def files(self) -> dict[str, int]:
        """Bytes in files, by purpose."""
        return {}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def same_memory(one: Tensor, other: Tensor) -> bool:
    """The same for dense tensors in host memory, several times as fast as torch.equal."""
    addresses = (ctypes.c_void_p(each.data_ptr()) for each in (one, other))
    differs: int = _libc.memcmp(*addresses, ctypes.c_size_t(one.nbytes))
    return differs == 0


def cut(elements: int, size: int) -> Iterator[tuple[int, int]]:
    """The consecutive ranges of ``size`` elements in ``elements``; the last one may be shorter."""
    for start in range(0, elements, size):
        yield start, min(start + size, elements)
