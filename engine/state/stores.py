"""Stores: the two interfaces to the states that a rank owns, whatever medium keeps them.

The rest of the engine asks a unit's OptimizerStore for slices to update and its ParameterStore for the shard to gather,
and never asks for their medium.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Handle
from zerobench.engine.state.portion import Portion


@dataclass(frozen=True)
class UpdateSlice:
    """A sub-group of one unit, open for the update: its tensors hold elements [start, stop) of the unit's extent.

    All of them lie on one device, and the update runs on that device.
    """

    start: int
    stop: int
    gradient: Tensor  # the sum over all leaves
    master: Tensor  # fp32
    optimizer: Sequence[Tensor]  # fp32, in the order of the optimizer's state names
    parameter: Tensor | None  # takes the master rounded to the training dtype; None if the master itself serves

    def part(self, start: int, stop: int) -> UpdateSlice:
        """The elements [start, stop) of the extent, which must be in the slice."""
        here = slice(start - self.start, stop - self.start)
        states = [tensor[here] for tensor in self.optimizer]
        parameter = None if self.parameter is None else self.parameter[here]
        return UpdateSlice(start, stop, self.gradient[here], self.master[here], states, parameter)

    def follow(self, start: int, stop: int) -> None:
        """Elements [start, stop) of the extent are not updated: their parameters are their masters, rounded."""
        part = self.part(start, stop)
        if part.parameter is not None:
            part.parameter.copy_(part.master)


class ParameterStore(ABC):
    """Keeps this rank's own part of one unit's parameters; positions count from the start of the unit's extent.

    An update writes new values to :meth:`view`, or hands them to :meth:`accept` if there is none on its side.
    """

    def prefetch(self) -> None:
        """Get ready: the shard will be asked for soon."""

    @abstractmethod
    def load(self) -> Tensor:
        """The shard, [unit.shard] on the device, to be sent: nobody writes to it, for it may be the store's memory."""

    @abstractmethod
    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        """The parameters' own memory of [start, stop), to write new values to, if it is on that side."""

    @abstractmethod
    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        """Take new values, which lie on that side, from ``start`` on; the handle waits until they have been read.

        The values of one step come in order and without gaps.
        """

    def memory(self) -> Tensor | None:
        """The shard's own memory on the device or the host; None if it is in neither."""
        return None

    @contextmanager
    def edit(self) -> Iterator[Tensor]:
        """Hand out a copy of the shard and, if it was changed when the context ends, take it over."""
        values = self.load().clone()
        before = values.clone()
        yield values
        if not same_bits(before, values):
            self.accept(0, values, host=False).wait()


class OptimizerStore(ABC):
    """Keeps the final gradient sum, the master and the optimizer states of the units that a rank steps; it owns them.

    The protocol: each unit is adopted once. In a step its gradient sum comes by :meth:`take`, range after range; then
    :meth:`sums` is asked once; then :meth:`update_slices` opens the states. Each call answers for the unit it names, in
    whatever order units are asked for. A store may read ahead in the order of adoption, which is then the fastest one.
    Between steps states are read and edited, always by copies.

    Args:
        names: of the optimizer states, in the optimizer's order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    @abstractmethod
    def adopt(self, portion: Portion, parameters: ParameterStore, master: Tensor, gradient: Tensor) -> None:
        """Take over a unit's states, and start its optimizer states at zero.

        Args:
            portion: the unit.
            parameters: takes the parameters that an update makes.
            master: fp32 over the extent, on the device.
            gradient: the accumulator on the device; the sum stays there, or is taken from there.
        """

    @abstractmethod
    def take(self, portion: Portion, start: int, stop: int, total: Tensor) -> None:
        """Elements [start, stop) of this rank's shard have their final gradient sum for this step: ``total``.

        The ranges of one unit come in order and without gaps.
        """

    @abstractmethod
    def sums(self, portion: Portion) -> Tensor:
        """The sums of squares of the gradient's chunks that this rank owns, fp64, on the device; asked once a step."""

    @abstractmethod
    def update_slices(self, portion: Portion) -> Iterator[UpdateSlice]:
        """The unit's sub-groups in order, each to be updated before the next is asked for."""

    @abstractmethod
    def read(self, portion: Portion, name: str, start: int, stop: int) -> Tensor:
        """A copy of elements [start, stop) on the device.

        ``name`` is ``gradient`` (positions in the shard), ``master`` or an optimizer state (positions in the extent).
        """

    @abstractmethod
    def write_master(self, portion: Portion, start: int, values: Tensor) -> None:
        """Replace the master's elements from ``start`` of the extent on by ``values``, fp32 on the device."""

    @contextmanager
    def edit_master(self, portion: Portion, start: int, stop: int) -> Iterator[Tensor]:
        """Hand out a copy of the master's elements [start, stop) and, if it was changed, write it back at the end."""
        values = self.read(portion, "master", start, stop)
        before = values.clone()
        yield values
        if not same_bits(before, values):
            self.write_master(portion, start, values)

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


def cut(elements: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of ``size`` elements, the last one shorter, that ``elements`` fall into."""
    for start in range(0, elements, size):
        yield start, min(start + size, elements)
