"""Gathering sharded parameters: which units are whole on this rank, when they become so and until when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from zerobench.engine.comm.agreement import Rounds
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.layout import Unit
from zerobench.engine.state.unit import UnitState

# Touches that prefetching always looks ahead. One would not do: what is announced at a touch is issued at the next, and
# that unit would be on its way only when it is needed.
_LEAST_AHEAD = 2


class Reductions(Protocol):
    """What a round tells the reducer, and what it asks of it."""

    ready: int

    def launch(self, count: int) -> None:
        """Start reducing the first ``count`` units; every rank does."""


class Gatherer:
    """Makes sharded units whole when they are touched, and gives their memory back.

    **Touch, hold, idle.** A unit is gathered when something touches it: a module's forward, an attribute access, or
    autograd unpacking a weight it saved. It is held while that use lasts (a count) and idle after. Idle units are
    released when another unit is touched, as long as more than ``max_live`` elements are whole; at the end of a
    micro-step likewise, and after an optimizer step all of them, since their values are old. Memory that some tensor
    outside still aliases (what a checkpoint's recomputation saved, say) is not released before that tensor is gone.

    **Rounds.** The ranks agree on every gather (see rounds.py); what one rank wants, all gather.

    **Prefetch.** The order of touches is remembered from the micro-step before. With each need a rank also announces
    what comes next, so that those gathers run while it computes: the units of as many touches as ``prefetch`` elements
    allow, whole ones counted, but of two at least; of none where ``prefetch`` is 0.
    """

    def __init__(self, states: Sequence[UnitState], ranks: Ranks, *, bucket: int, prefetch: int, max_live: int) -> None:
        self.states = list(states)
        self.ranks = ranks
        self.reductions: Reductions | None = None
        self._messengers = ranks.messengers()
        self._rounds = Rounds(self._messengers, len(states), self._messengers.message_device(states[0].full.device))
        self.bucket, self.prefetch, self.max_live = bucket, prefetch, max_live
        self._position = {state: i for i, state in enumerate(self.states)}
        self._holds = dict.fromkeys(self.states, 0)
        self._arriving: dict[UnitState, list[Any]] = {}
        self._unused: set[UnitState] = set()  # gathered ahead of their use
        self._order: dict[str, list[UnitState]] = {}
        self._stale: set[UnitState] = set()  # whole, but with the values from before an optimizer step
        self._recent: Sequence[UnitState] = ()
        self._open = False
        #: Collectives are being issued, and whoever sees them may look at the model (see Access.touch).
        self.communicating = False

    # Micro-steps

    def begin(self, kind: str) -> None:
        """A forward begins; ``kind`` tells apart the passes whose orders of touches differ (training, evaluation)."""
        if not self._open:
            self._open, self._kind = True, kind
            self._touched: list[UnitState] = []
            self._cursor = 0
            self._recent = ()

    def finish(self) -> None:
        """This rank's micro-step (or evaluation) is over; returns when every rank's is. A collective."""
        self._decide()
        over = False
        while not over:
            self._announce((), over=True)
            over = self._decide()
        self._order[self._kind] = self._touched
        self._open, self._recent = False, ()
        for state in list(self._arriving):
            self._arrive(state)
        self._unused.clear()
        self._evict()

    # Use

    def hold(self, states: Sequence[UnitState]) -> None:
        """Make the units whole and keep them so until :meth:`drop`."""
        for state in states:
            self._holds[state] += 1
        self._need(states)

    def drop(self, states: Iterable[UnitState]) -> None:
        """One use of the units is over."""
        for state in states:
            self._holds[state] -= 1

    def invalidate(self) -> None:
        """The shards have new values: release every whole unit."""
        self._recent = ()
        self._stale = {state for state in self.states if state.resident}
        for state in list(self._stale):
            self._release(state)

    def offer(self) -> None:
        """The reducer has another unit ready: settle the round before and announce it.

        Where a unit that is still to be touched will have to be gathered, that round will say so; where no order of
        touches is known yet, the next one does.
        """
        if self._kind in self._order and all(state.resident for state in self._upcoming()):
            self._decide()
            self._announce(())

    # Mechanism

    def _need(self, states: Sequence[UnitState]) -> None:
        if all(state in self._recent for state in states):
            return  # the same use goes on: nothing else was touched, so nothing was released
        self._recent = states
        self._follow(states)
        self._evict()
        self._decide()
        missing = [s for s in states if not s.resident or s in self._stale]
        ahead = self._foreseen()
        if missing:
            self._announce([*missing, *ahead])
            self._decide()
        elif ahead:
            self._announce(ahead)
        for state in states:
            self._unused.discard(state)
            self._arrive(state)

    def _follow(self, states: Sequence[UnitState]) -> None:
        """Note the touches and find them in the order remembered."""
        for state in states:
            self._touched.append(state)
            upcoming = self._upcoming()
            if state in upcoming:
                self._cursor += upcoming.index(state) + 1

    def _upcoming(self) -> list[UnitState]:
        """The touches that are still to come if this pass is like the one before."""
        return self._order.get(self._kind, [])[self._cursor :]

    def _foreseen(self) -> list[UnitState]:
        """The units that are not whole, of the next touches, as many of these as ``prefetch`` elements allow."""
        ahead: list[UnitState] = []
        room = self.prefetch
        for position, state in enumerate(self._upcoming() if self.prefetch else ()):
            room -= state.unit.padded
            if room < 0 and position >= _LEAST_AHEAD:
                break
            if not state.resident and state not in ahead:
                ahead.append(state)
        return ahead

    def _evict(self) -> None:
        live = sum(state.unit.padded for state in self.states if state.resident)
        for state in self.states:
            if live <= self.max_live:
                return
            if state.resident and state not in self._recent and self._release(state):
                live -= state.unit.padded

    def _release(self, state: UnitState) -> bool:
        """Free a whole unit's memory if nobody uses it."""
        if self._holds[state] or state in self._unused or state in self._arriving or state.aliased:
            return False
        state.release()
        self._stale.discard(state)
        return True

    def _announce(self, states: Sequence[UnitState], *, over: bool = False) -> None:
        ready = self.reductions.ready if self.reductions else 0
        with self._communication():
            self._rounds.announce((self._position[state] for state in states), ready, over)
        for state in states:
            state.home.prefetch()

    def _decide(self) -> bool:
        """Settle the round this rank has announced, if any, and issue what was agreed; True if all are at the end."""
        agreement = self._rounds.decide()
        if agreement is None:
            return False
        with self._communication():
            for unit in agreement.wanted:
                self._start(self.states[unit])
            if self.reductions:
                self.reductions.launch(agreement.ready)
        return agreement.over

    @contextmanager
    def _communication(self) -> Iterator[None]:
        self.communicating = True
        try:
            yield
        finally:
            self.communicating = False

    def _start(self, state: UnitState) -> None:
        """Start gathering one unit; into memory that is thrown away where this rank has it already."""
        if state.resident and state not in self._stale:
            target = torch.empty_like(state.full)
        else:
            if not state.resident:
                state.allocate()
                self._unused.add(state)
            target = state.full
        self._stale.discard(state)
        works = gather_shards(state.unit, target, state.home.load(), self.ranks, self.bucket)
        self._arriving.setdefault(state, []).extend(works)

    def _arrive(self, state: UnitState) -> None:
        for work in self._arriving.pop(state, []):
            work.wait()

    def close(self) -> None:
        """Give back what was made for messages alone."""
        if self._messengers is not self.ranks:
            self._messengers.destroy()
            self._messengers = self.ranks


class _Scattered:
    """A gather of a slice of every shard: arrives in rank order and is then put in its places."""

    def __init__(self, work: Any, received: Tensor, places: Tensor) -> None:
        self._work, self._received, self._places = work, received, places

    def wait(self) -> None:
        """Wait for the bytes and put them in place."""
        self._work.wait()
        self._places.copy_(self._received)


def gather_shards(unit: Unit, full: Tensor, shard: Tensor, ranks: Ranks, bucket: int) -> list[Any]:
    """Start all-gathering every rank's ``shard`` into ``full``, ``bucket`` elements of the whole at a time."""
    cuts = list(unit.buckets(bucket))
    if len(cuts) <= 1 or ranks.world == 1:
        return [ranks.all_gather(full, shard)] if cuts else []
    rows = full.view(ranks.world, -1)
    works = []
    for start, stop in cuts:
        received = torch.empty(ranks.world, stop - start, dtype=full.dtype, device=full.device)
        work = ranks.all_gather(received.view(-1), shard[start:stop])
        works.append(_Scattered(work, received, rows[:, start:stop]))
    return works
