"""The reference engine where all that may end late does so as late as it may.

On a CPU a copy is over when it is started, and a gather often before it is waited for: an engine that forgot to wait
would be right there, and wrong on a GPU, now and then. Here it is wrong at once.
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
from zerobench.engine.state.copies import Copies
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference


class Late(Reference):
    """Right, or the engine somewhere uses what has not arrived, or changes what has not left."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        with (
            mock.patch("zerobench.engine.engine.Ranks", _LateRanks),
            mock.patch("zerobench.engine.state.assignment.Copies", _LateCopies),
        ):
            super().__init__(model, scenario, group)


class _LateCopies(Copies):
    """A stream that only works while somebody waits: it makes its copies in order, up to the one waited for."""

    def __init__(self, device: torch.device, pin: bool) -> None:
        super().__init__(device, pin)
        self._given: deque[_LateCopy] = deque()
        self._working = threading.RLock()  # the files' threads wait, too

    def _start(
        self, copy: Callable[[Tensor, Tensor, bool], None], source: Tensor, target: Tensor, device: Tensor
    ) -> Handle:
        late = _LateCopy(self, partial(copy, source, target, False))
        with self._working:
            self._given.append(late)
        return late

    def join(self, handle: Handle | None = None) -> None:
        self.work(handle)

    def work(self, until: Handle | None) -> None:
        """Make the copies up to this one, or all."""
        with self._working:
            while self._given and (until is None or until in self._given):
                self._given.popleft().make()


@dataclass(frozen=True, eq=False)
class _LateCopy:
    copies: _LateCopies
    make: Callable[[], None]

    def wait(self) -> None:
        self.copies.work(self)


class _LateRanks(Ranks):
    """What a collective brings is there once it is waited for, and NaN before."""

    def all_gather(self, output: Tensor, own: Tensor) -> Any:
        return self._late(super().all_gather, output, own)

    def all_to_all(self, output: Tensor, parts: Tensor) -> Any:
        return self._late(super().all_to_all, output, parts)

    def _late(self, collective: Callable[[Tensor, Tensor], Any], output: Tensor, given: Tensor) -> Any:
        if self.world == 1:
            return collective(output, given)  # a copy, made when it is asked for on every device
        sent, arrived = given.clone(), torch.empty_like(output)
        work = collective(arrived, sent)
        output.view(torch.uint8).fill_(0xFF)
        given.copy_(sent)  # it may be a part of the output
        return LateWork(work, output, arrived, given, sent)


class ChangedWhileSent(RuntimeError):
    """The engine has changed a tensor that it had given to a collective and had not waited for."""


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
