"""Unsharding: which sharded units are whole on this rank, from when on, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from zerobench.engine.comm.agreement import Agreement
from zerobench.engine.comm.collectives import Handle, Ranks
from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.stage3.passes import Pass, Reductions
from zerobench.engine.state.unit import UnitState

# Uses that prefetching always looks ahead. One would not do: a gather that is announced at a use is issued at the next,
# and that unit would be on its way only when it is needed.
_LEAST_AHEAD = 2


class Unsharder:
    """Makes sharded units whole when they are used, and gives their memory back.

    **Use, pin, idle.** A use of a unit unshards it: a module's forward, an attribute access, or autograd unpacking a
    weight it saved. It is pinned while that use lasts (a count) and idle after. Idle units are resharded when another
    unit is used, as long as more than ``max_live`` elements are whole; at the end of a pass likewise, and after an
    optimizer step all of them, since their values are old. Memory that some tensor outside still aliases (a tensor that
    a checkpoint's recomputation saved, say) is not given back before that tensor is gone.

    **Bound.** The model's parameters can be read from the first use of their unit to its resharding or the end of the
    pass, whichever comes first; else they refuse to be used (see Resharded).

    **Agreement.** The ranks agree on every gather (see Agreement); all ranks gather a unit that one of them wants. If a
    backward runs, they agree on its reductions in the same rounds (see Pass.reductions).

    **Prefetch.** The order of uses is remembered from the pass before. With each need a rank also announces the units
    that come next, so that those gathers run while it computes: the units of as many uses as ``prefetch`` elements
    allow, whole ones counted, but of two at least; of none if ``prefetch`` is 0.
    """

    def __init__(self, states: Sequence[UnitState], ranks: Ranks, *, bucket: int, prefetch: int, max_live: int) -> None:
        self.states = list(states)
        self.ranks = ranks
        self._messengers = ranks.messengers()
        device = self._messengers.message_device(states[0].full.device)
        self._agreement = Agreement(self._messengers, len(states), device)
        self.bucket, self.prefetch, self.max_live = bucket, prefetch, max_live
        self._position = {state: i for i, state in enumerate(self.states)}
        self._pins = dict.fromkeys(self.states, 0)
        self._arriving: dict[UnitState, list[Handle]] = {}
        self._unused: set[UnitState] = set()  # gathered ahead of their use
        self._stale: set[UnitState] = set()  # whole, but with the values from before an optimizer step
        self._by_storage: dict[int, UnitState] = {}  # the units that have memory, by its address
        self._live = 0  # elements of these
        self._orders: dict[str, Sequence[UnitState]] = {}  # of uses, by the kind of pass
        self._pass: Pass | None = None
        #: Collectives are being issued, and their observers may look at the model (see ParameterHooks.use).
        self.communicating = False

    # Passes

    def begin(self, kind: str) -> None:
        """A pass begins, unless one is running; ``kind`` is one of those that Pass names."""
        if self._pass is None or self._pass.kind == _STRAY:
            self._pass = Pass(kind, self._orders.get(kind))

    def begin_reductions(self, reductions: Reductions) -> None:
        """The running pass comes to its backward, whose reductions the ranks agree on from now on."""
        self._running.reductions = reductions

    def finish(self) -> None:
        """This rank's pass is over; returns when every rank's is. A collective."""
        self._decide()
        over = False
        while not over:
            self._announce((), over=True)
            over = self._decide()
        ended, self._pass = self._running, None
        self._orders[ended.kind] = ended.used
        if ended.reductions is not None:  # this was a reading inside a backward, which goes on
            self._running.reductions = ended.reductions
        for state in list(self._arriving):
            self._arrive(state)
        self._unused.clear()
        self._evict()
        self._unbind_idle()

    def finish_reductions(self) -> None:
        """The backward is over, and its pass with it; returns when every rank's is. A collective."""
        self.finish()
        self._pass = None

    @property
    def _running(self) -> Pass:
        """The pass; a use outside of any, which the engine's own calls never make, begins one that is forgotten."""
        if self._pass is None:
            self._pass = Pass(_STRAY, None)
        return self._pass

    # Use

    def pin(self, states: Sequence[UnitState]) -> None:
        """Make the units whole and keep them so until :meth:`unpin`."""
        for state in states:
            self._pins[state] += 1
        self._need(states)

    def unpin(self, states: Iterable[UnitState]) -> None:
        """One use of the units is over."""
        for state in states:
            self._pins[state] -= 1
            if not self._pins[state] and self._pass is None:
                state.unbind()

    def reshard_all(self) -> None:
        """The shards have new values: reshard every unit that is not in use."""
        if self._pass is not None:
            self._pass.current = ()
        self._stale = {state for state in self.states if state.resident}
        for state in list(self._stale):
            self._reshard(state)
        self._unbind_idle()

    def offer(self) -> None:
        """The backward has another unit's gradients ready: settle the round before and announce it.

        If a unit that is still to be used will have to be gathered, that round will say so; if no order of uses is
        known yet, the next one does.
        """
        running = self._running
        if running.foreseen and all(state.resident for state in running.upcoming()):
            self._decide()
            self._announce(())

    def unit_of(self, tensor: Tensor) -> UnitState | None:
        """The unit in whose memory the tensor lies."""
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    # Mechanism

    def _need(self, states: Sequence[UnitState]) -> None:
        running = self._running
        if all(state in running.current for state in states):
            return  # the same use goes on: nothing else was used, so nothing was resharded
        running.use(states)
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
            state.bind()

    def _foreseen(self) -> list[UnitState]:
        """The units that are not whole, of the next uses, as many of these as ``prefetch`` elements allow."""
        ahead: list[UnitState] = []
        room = self.prefetch
        for position, state in enumerate(self._running.upcoming() if self.prefetch else ()):
            room -= state.unit.padded
            if room < 0 and position >= _LEAST_AHEAD:
                break
            if not state.resident and state not in ahead:
                ahead.append(state)
        return ahead

    def _evict(self) -> None:
        if self._live <= self.max_live:
            return
        current = self._pass.current if self._pass is not None else ()
        for state in sorted(self._by_storage.values(), key=self._position.__getitem__):
            if self._live <= self.max_live:
                return
            if state not in current:
                self._reshard(state)

    def _reshard(self, state: UnitState) -> None:
        """Free a whole unit's memory if nobody uses it."""
        if self._pins[state] or state in self._unused or state in self._arriving:
            return
        address = state.storage._cdata
        if not state.reshard():
            return
        if self._by_storage.pop(address, None) is not None:  # a unit without elements never had memory
            self._live -= state.unit.padded
        self._stale.discard(state)

    def _unbind_idle(self) -> None:
        for state in self.states:
            if not self._pins[state]:
                state.unbind()

    def _announce(self, states: Sequence[UnitState], *, over: bool = False) -> None:
        ready = self._pass.ready if self._pass is not None else 0
        with self._communication():
            self._agreement.announce((self._position[state] for state in states), ready, over)
        for state in states:
            state.parameter_store.prefetch()

    def _decide(self) -> bool:
        """Settle the round this rank has announced, if any, and issue its decision; True if all are at the end."""
        decision = self._agreement.decide()
        if decision is None:
            return False
        with self._communication():
            for unit in decision.wanted:
                self._start(self.states[unit])
            if self._pass is not None and self._pass.reductions is not None:
                self._pass.reductions.launch(decision.ready)
        return decision.over

    @contextmanager
    def _communication(self) -> Iterator[None]:
        self.communicating = True
        try:
            yield
        finally:
            self.communicating = False

    def _start(self, state: UnitState) -> None:
        """Start gathering one unit; into memory that is thrown away if this rank has it already."""
        if state.resident and state not in self._stale:
            target = torch.empty_like(state.full)
        else:
            if not state.resident:
                state.allocate()
                self._by_storage[state.storage._cdata] = state
                self._live += state.unit.padded
                self._unused.add(state)
            target = state.full
        self._stale.discard(state)
        works = gather_shards(state.unit, target, state.parameter_store.load(), self.ranks, self.bucket)
        self._arriving.setdefault(state, []).extend(works)

    def _arrive(self, state: UnitState) -> None:
        for work in self._arriving.pop(state, []):
            work.wait()

    def close(self) -> None:
        """Give back the group that was made for messages alone."""
        if self._messengers is not self.ranks:
            self._messengers.destroy()
            self._messengers = self.ranks


_STRAY = "stray"
