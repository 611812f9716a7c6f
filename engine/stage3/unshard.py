"""Unsharding: when sharded units become whole on this rank, and when they are resharded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch

from zerobench.engine.comm.agreement import Agreement
from zerobench.engine.comm.collectives import Handle, Ranks
from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.layout import Slot
from zerobench.engine.stage3.passes import Pass, Reductions
from zerobench.engine.stage3.transforms import outside_transforms
from zerobench.engine.state.unit import UnitState


class Unsharder:
    """Makes sharded units whole when they are used, and frees their memory afterwards.

    **Use, pin, idle.** A use unshards a unit: a module's forward, an attribute access, or autograd unpacking a saved
    weight. The unit is pinned during its uses (a count) and then idle. At the use of another unit and at the end of a
    pass, idle units are resharded until at most ``max_live`` elements are whole. After an optimizer step all idle units
    are resharded, since their values are old. If another tensor aliases a unit's memory (such as a tensor saved in a
    checkpoint's recomputation), the memory is freed only after that tensor.

    **Bound.** The model's parameters can be read from the first use of their unit until it is resharded or the pass
    ends. At any other time they refuse to be used (see Resharded).

    **Contexts.** GatheredParameters shows parameters to the client. If an update or a load gives the shards new values
    meanwhile, :meth:`renew` gathers the shown units again, so that the end of the context keeps the new values.

    **Agreement.** The ranks agree on every gather (see Agreement): if one rank wants a unit, all ranks gather it. If a
    backward is running, they agree on its reductions in the same rounds (see Pass.reductions).

    **Prefetch.** The Unsharder keeps the order of uses of the last pass. With each need a rank also announces the units
    of the next uses, so that these gathers overlap with computation. It looks ahead up to ``prefetch`` elements, whole
    units included, but at least two uses; if ``prefetch`` is 0, it does not look ahead.
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
        self._idle: set[UnitState] = set()  # whole and used, and pinned by no use
        self._arriving: dict[UnitState, list[Handle]] = {}
        self._unused: set[UnitState] = set()  # gathered ahead of their use
        self._stale: set[UnitState] = set()  # whole, but with values older than an optimizer step
        #: The units that have memory, by its address (UntypedStorage._cdata).
        self.by_storage: dict[int, UnitState] = {}
        self._live = 0  # the elements of these units
        self._orders: dict[str, Sequence[UnitState]] = {}  # the orders of uses, by the kind of pass
        self._pass: Pass | None = None
        self._contexts = dict.fromkeys(self.states, 0)  # how many hold the unit
        self._shown = dict.fromkeys(self.states, 0)  # how many contexts show a part of it
        self._held = False
        #: Collectives are being issued; their observers may read the model (see ParameterHooks.use).
        self.communicating = False

    # Passes

    @outside_transforms
    def begin(self, kind: str) -> None:
        """Begin a pass unless one is running; ``kind`` is one of the kinds of Pass."""
        if kind == "training":
            self._held = False
        if self._held:
            return
        if self._pass is None or self._pass.kind == _STRAY:
            self._pass = Pass(kind, self._orders.get(kind))

    def begin_reductions(self, reductions: Reductions) -> None:
        """Begin the backward of the running pass; the ranks now agree on its reductions too."""
        self._running.reductions = reductions

    @outside_transforms
    def finish(self) -> None:
        """End this rank's pass, and wait until all ranks have ended theirs. A collective, unless units are held."""
        if self._held:
            return
        self._decide()
        over = False
        while not over:
            self._announce((), over=True)
            over = self._decide()
        ended, self._pass = self._running, None
        self._orders[ended.kind] = ended.used
        if ended.reductions is not None:  # the pass was a reading inside a backward, which continues
            self._running.reductions = ended.reductions
        for state in list(self._arriving):
            self._arrive(state)
        self._idle |= self._unused
        self._unused.clear()
        self._evict()
        self._unbind_idle()

    def finish_reductions(self) -> None:
        """End the backward and its pass, and wait until all ranks have ended theirs. A collective."""
        self.finish()
        self._pass = None

    @property
    def _running(self) -> Pass:
        """The pass; if there is none, which the engine's own calls avoid, a temporary one begins."""
        if self._pass is None:
            self._pass = Pass(_STRAY, None)
        return self._pass

    # Use

    @outside_transforms
    def pin(self, states: Sequence[UnitState], chosen: Mapping[UnitState, Collection[Slot]] | None = None) -> None:
        """Make the units whole and keep them whole until :meth:`unpin`.

        If ``chosen`` is given, only these parameters of the units can be used, unless another use has the others.
        """
        for state in states:
            self._pins[state] += 1
            self._idle.discard(state)
        self._need(states)
        for state in states:
            if chosen is not None and self._pins[state] == 1:
                self._unbind(state)  # of a use that has ended
            state.bind(None if chosen is None else chosen[state])

    @outside_transforms
    def unpin(self, states: Iterable[UnitState]) -> None:
        """End one use of the units."""
        for state in states:
            self._pins[state] -= 1
            if not self._pins[state]:
                self._idle.add(state)
                if self._pass is None:
                    self._unbind(state)

    def hold(self, states: Iterable[UnitState]) -> None:
        """Begin a context that pins the units; while contexts pin every unit, no use and no pass communicates.

        Other pins do not count: they end when their use ends, which may be a backward with reductions to come.
        """
        for state in states:
            self._contexts[state] += 1
        self._held = all(self._contexts.values())

    def release(self, states: Iterable[UnitState]) -> None:
        """End it."""
        for state in states:
            self._contexts[state] -= 1
        self._held = False

    def enter(self, states: Iterable[UnitState]) -> None:
        """Begin a context that shows parameters of the units, which follow new values of the shards (see renew)."""
        for state in states:
            self._shown[state] += 1

    def leave(self, states: Iterable[UnitState]) -> None:
        """End it."""
        for state in states:
            self._shown[state] -= 1

    def shows(self, state: UnitState) -> bool:
        """Whether a context shows parameters of the unit, with the values of the shards."""
        return self._shown[state] > 0 and state not in self._stale

    def renew(self) -> None:
        """Reshard every unit that is not in use, because the shards have new values, and gather those that contexts
        show again; a collective."""
        self.reshard_all()
        states = [state for state in self.states if self._shown[state] and state in self._stale]
        if states:
            self.begin("reading")
            self._need(states)
            self.finish()

    def reshard_all(self) -> None:
        """Reshard every unit that is not in use, because the shards have new values."""
        self._held = False
        self._stale = {state for state in self.states if state.resident}
        self.reshard_idle()

    def reshard_idle(self) -> None:
        """Reshard every unit that is not in use."""
        if self._pass is not None:
            self._pass.current = frozenset()
        for state in self.states:
            if state.resident:
                self._reshard(state)
        self._unbind_idle()

    def offer(self) -> None:
        """Announce another unit that the backward can reduce, after settling the round before.

        If no order of uses is known yet, or if an expected use still needs a gather, the round of the next gather
        announces the unit.
        """
        if self._running.complete:
            self._decide()
            self._announce(())

    # Mechanism

    def _need(self, states: Sequence[UnitState]) -> None:
        if self._held:
            return
        running = self._running
        if running.current.issuperset(states):
            return  # the same use continues: no other unit was used, so none was resharded
        running.use(states)
        self._evict()
        self._decide()
        missing = [s for s in states if not s.resident or s in self._stale]
        ahead = running.ahead(self.prefetch) if self.prefetch else []
        if missing:
            self._announce([*missing, *ahead])
            self._decide()
        elif ahead:
            self._announce(ahead)
        for state in states:
            self._unused.discard(state)
            self._arrive(state)

    def _evict(self) -> None:
        if self._live <= self.max_live:
            return
        current = self._pass.current if self._pass is not None else frozenset()
        for position in sorted(self._position[state] for state in self._idle - current):
            if self._live <= self.max_live:
                return
            self._reshard(self.states[position])

    def _reshard(self, state: UnitState) -> None:
        """Free a whole unit's memory if it is not in use."""
        if self._pins[state] or state in self._unused or state in self._arriving:
            return
        self._unbind(state)
        address = state.storage._cdata
        if not state.reshard():
            return
        self._idle.discard(state)
        if self.by_storage.pop(address, None) is not None:  # a unit without elements has no memory
            self._live -= state.unit.padded
            if self._pass is not None:
                self._pass.freed(state)
        self._stale.discard(state)

    def _unbind_idle(self) -> None:
        for state in self.states:
            if not self._pins[state]:
                self._unbind(state)

    def _unbind(self, state: UnitState) -> None:
        """Keep edits of the model's parameters, which a forward or the caller has made, and end their use."""
        if state.bound:
            self._keep_edits(state)
            state.unbind()

    def _keep_edits(self, state: UnitState) -> None:
        """Keep this rank's part of them, unless the whole unit is older than the shard or does not have its values."""
        if state not in self._stale and state not in self._arriving:
            state.keep_shard_edits()

    def _announce(self, states: Sequence[UnitState], *, over: bool = False) -> None:
        ready, kind = (self._pass.ready, self._pass.kind) if self._pass is not None else (0, "")
        if kind == "training" and self._pass is not None and self._pass.reductions is not None:
            kind = "backward"
        self.communicating = True
        try:
            self._agreement.announce([self._position[state] for state in states], ready, over, kind)
        finally:
            self.communicating = False
        for state in states:
            state.parameter_store.prefetch()

    def _decide(self) -> bool:
        """If this rank has announced a round, settle it and issue its decision; True if all ranks are at the end."""
        decision = self._agreement.decide()
        if decision is None:
            return False
        self.communicating = True
        try:
            for unit in decision.wanted:
                self._start(self.states[unit])
            if self._pass is not None and self._pass.reductions is not None:
                self._pass.reductions.launch(decision.ready)
        finally:
            self.communicating = False
        return decision.over

    def _start(self, state: UnitState) -> None:
        """Start gathering one unit; if this rank has it already, into memory that is discarded."""
        if state.resident and state not in self._stale:
            target = torch.empty_like(state.full)
            if not self._contexts[state]:  # the end of a context keeps its edits, or drops them
                self._keep_edits(state)
        else:
            if not state.resident:
                state.allocate()
                self.by_storage[state.storage._cdata] = state
                self._live += state.unit.padded
                self._unused.add(state)
                if self._pass is not None:
                    self._pass.allocated(state)
            target = state.full
        self._stale.discard(state)
        works = gather_shards(state.unit, target, state.parameter_store.load(), self.ranks, self.bucket)
        self._arriving.setdefault(state, []).extend(works)

    def _arrive(self, state: UnitState) -> None:
        for work in self._arriving.pop(state, []):
            work.wait()

    def close(self) -> None:
        """Destroy the group that was created for messages only."""
        if self._messengers is not self.ranks:
            self._messengers.destroy()
            self._messengers = self.ranks


_STRAY = "stray"
