"""The reference engine with every operation that may end late ending as late as possible.

On a CPU a copy is over when it is started, and a gather often before the engine waits for it: an engine that forgot to
wait would be right there, and wrong on a GPU, now and then. Here it is wrong at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.comm.collectives import Handle, Ranks
from zerobench.engine.state.copies import Copies, to_device, to_host
from zerobench.engine.state.scratch import ScratchFile
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference


class Late(Reference):
    """Right, unless the engine uses a tensor that has not arrived, or changes one that has not left."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        with (
            mock.patch("zerobench.engine.construction.Ranks", _LateRanks),
            mock.patch("zerobench.engine.state.assignment.Copies", _LateCopies),
            mock.patch("zerobench.engine.state.assignment.ScratchFile", _LateFile),
        ):
            super().__init__(model, scenario, group)


class _LateCopies(Copies):
    """Two streams that work only during a wait: each makes its copies in order, up to the awaited one."""

    def __init__(self, device: torch.device, pin: bool) -> None:
        super().__init__(device, pin)
        self._given: dict[Any, deque[_LateCopy]] = {to_host: deque(), to_device: deque()}
        self._working = threading.RLock()  # the files' threads wait, too

    def _start(
        self,
        stream: Any,
        copy: Callable[[Tensor, Tensor, bool], None],
        source: Tensor,
        target: Tensor,
        after: Handle | None = None,
    ) -> Handle:
        late = _LateCopy(self, partial(copy, source, target, False), after)
        with self._working:
            self._given[copy].append(late)
        return late

    def join(self, handle: Handle | None = None) -> None:
        self.work(handle)

    def work(self, until: Handle | None) -> None:
        """Make the copies up to this one, or all."""
        with self._working:
            for given in self._given.values():
                while given and (until is None or until in given):
                    first = given.popleft()
                    if first.after is not None:
                        first.after.wait()
                    first.make()


@dataclass(frozen=True, eq=False)
class _LateCopy:
    copies: _LateCopies
    make: Callable[[], None]
    after: Handle | None  # a copy in the other stream that ends before

    def wait(self) -> None:
        self.copies.work(self)


class _LateFile(ScratchFile):
    """A file that is read and written during a wait. What is read is NaN before; what is written is the next value of
    the buffer if the engine uses that again too early."""

    def _start(
        self, block: Callable[[int, memoryview, Handle], None], offset: int, values: Tensor, after: Handle
    ) -> Handle:
        if block == self._read_block:
            values.fill_(0xFF)
        return _LateTransfer(block, offset, values, after)


class _LateTransfer:
    """One read or write, which the first wait makes, in the thread that waits."""

    def __init__(
        self, block: Callable[[int, memoryview, Handle], None], offset: int, values: Tensor, after: Handle
    ) -> None:
        self._make: Callable[[], None] | None = partial(block, offset, memoryview(values.numpy()), after)  # type: ignore[arg-type]
        self._working = threading.Lock()

    def wait(self) -> None:
        with self._working:
            if self._make is not None:
                self._make()
                self._make = None


class _LateRanks(Ranks):
    """A collective's output arrives during the wait, and is NaN before."""

    def all_gather(self, output: Tensor, own: Tensor) -> Any:
        return self._late(super().all_gather, output, own)

    def all_to_all(self, output: Tensor, parts: Tensor) -> Any:
        return self._late(super().all_to_all, output, parts)

    def _late(self, collective: Callable[[Tensor, Tensor], Any], output: Tensor, given: Tensor) -> Any:
        if self.world == 1:
            return collective(output, given)  # a copy, made at the call on every device
        sent, arrived = given.clone(), torch.empty_like(output)
        work = collective(arrived, sent)
        output.view(torch.uint8).fill_(0xFF)
        given.copy_(sent)  # it may be a part of the output
        return LateWork(work, output, arrived, given, sent)


class ChangedWhileSent(RuntimeError):
    """The engine has changed a tensor of a collective before it waited for the collective."""


@dataclass(frozen=True)
class LateWork:
    """A collective under way: ``arrived`` will be copied to ``output``; ``sent`` is a copy of ``given``.

    Raises:
        ChangedWhileSent: ``given`` has changed before :meth:`wait`.
    """

    work: Any
    output: Tensor
    arrived: Tensor
    given: Tensor
    sent: Tensor

    def wait(self) -> None:
        self.work.wait()
        if not torch.equal(self.given.view(torch.uint8), self.sent.view(torch.uint8)):
            raise ChangedWhileSent("a tensor that was being sent has been changed before the engine waited for it")
        self.output.copy_(self.arrived)
