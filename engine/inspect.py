"""Reading and editing state that is spread over ranks. Every function here is a collective of the engine's ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.layout import Slot
from zerobench.engine.replicated import same_values
from zerobench.engine.state.unit import UnitState

if TYPE_CHECKING:
    from zerobench.engine.engine import Engine

_engines = WeakIdKeyDictionary()  # parameter -> weak reference to its engine


class Recent:
    """What was gathered last for reading: of each kind of state one run of neighbouring units, by one all-gather.

    Reading all parameters in the model's order so takes few collectives. Whatever moves a state makes a new one; each
    rank does, so all ranks gather again or none.
    """

    def __init__(self) -> None:
        self.active: list[bool] | None = None  # by trainable parameter, on any rank
        self._wholes: dict[str, dict[UnitState, Tensor]] = {}

    def whole(self, engine: Engine, state: UnitState, kind: str) -> Tensor:
        """The whole unit of a state that is kept over the shard; not to be written to."""
        if state not in self._wholes.get(kind, {}):
            self._wholes[kind] = _gathered(engine.ranks, _ahead(engine, state), kind)
        return self._wholes[kind][state]


def _ahead(engine: Engine, state: UnitState) -> list[UnitState]:
    """The unit and those after it, as many as the prefetch bucket's elements allow."""
    trained = [each for each in engine.states if each.unit.trainable]
    room = engine.config.zero_optimization.stage3_prefetch_bucket_size - state.unit.padded
    chosen = [state]
    for each in trained[trained.index(state) + 1 :]:
        room -= each.unit.padded
        if room < 0:
            break
        chosen.append(each)
    return chosen


def _gathered(ranks: Ranks, states: list[UnitState], kind: str) -> dict[UnitState, Tensor]:
    own = torch.cat([state.place.read(state, kind) for state in states])
    everyone = torch.empty(ranks.world, own.numel(), dtype=own.dtype, device=own.device)
    ranks.all_gather(everyone.view(-1), own).wait()
    shards = torch.split(everyone, [state.unit.shard for state in states], dim=1)
    return {state: shard.reshape(-1) for state, shard in zip(states, shards, strict=True)}


def register(engine: Engine) -> None:
    """Remember which engine the module's parameters belong to."""
    for parameter in engine.module.parameters():
        _engines[parameter] = weakref.ref(engine)


def safe_get_full_fp32_param(parameter: nn.Parameter) -> Tensor | None:
    """The whole fp32 value (the master weight) of a parameter, on every rank; None for a frozen one."""
    engine, state, slot = _locate(parameter)
    if state is None or not state.unit.trainable:
        return None
    return _whole(engine, state, slot, "master")


def safe_get_full_optimizer_state(parameter: nn.Parameter, name: str) -> Tensor | None:
    """The whole optimizer state ``name`` (torch's, such as ``exp_avg``) of a parameter; None for a frozen one.

    Raises:
        KeyError: the optimizer keeps no such state.
    """
    engine, state, slot = _locate(parameter)
    if state is None or not state.unit.trainable:
        return None
    names = engine.optimizer.state_names
    if name not in names:
        raise KeyError(f"no optimizer state {name!r}; there is {', '.join(names) or 'none'}")
    return _whole(engine, state, slot, name)


def safe_get_full_grad(parameter: nn.Parameter) -> Tensor | None:
    """The whole fp32 mean gradient of a parameter: loss scale undone, not clipped. None if no leaf gave it one.

    To be called between the last ``backward()`` of a step and its ``step()``.
    """
    engine, state, slot = _locate(parameter)
    if state is None or not state.unit.trainable:
        return None
    recent = engine.recently_read
    if recent.active is None:
        recent.active = engine.ranks.anywhere(engine.reducer.active, state.full.device)
    if not recent.active[slot.index]:
        return None
    return slot.view(recent.whole(engine, state, "gradient")).float() * (1 / (engine.leaves * engine.loss_scale))


@contextmanager
def GatheredParameters(
    parameters: Iterable[nn.Parameter] | nn.Parameter | nn.Module, modifier_rank: int | None = None
) -> Iterator[None]:
    """Make the parameters whole on every rank within the context; edits made inside persist on every rank.

    With ``modifier_rank`` its values are the ones that persist. Without, every rank is to make the same edit, and each
    owner keeps its part. In low precision an edited element's fp32 master becomes the edited value; the others keep
    theirs. After an exception inside no edit of a sharded parameter persists.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    chosen = [parameters] if isinstance(parameters, nn.Parameter) else list(parameters)
    found = [_locate(parameter) for parameter in chosen]
    engines = {id(engine): engine for engine, _, _ in found}
    sharded = list(dict.fromkeys(state for _, state, _ in found if state is not None and state.sharded))
    gatherers = {
        engine.gatherer: [state for state in sharded if state in engine.states]
        for engine in engines.values()
        if engine.gatherer
    }
    for gatherer, states in gatherers.items():
        gatherer.begin("reading")
        gatherer.hold(states)
    try:
        yield
        for engine, state, slot in found:
            _persist(engine, state, slot, modifier_rank)
            engine.recently_read = Recent()
    except BaseException:
        for gatherer, states in gatherers.items():
            gatherer.drop(states)
            gatherer.invalidate()  # an edit that does not persist must not be used either
        raise
    for gatherer, states in gatherers.items():
        gatherer.drop(states)
        gatherer.finish()


def _locate(parameter: nn.Parameter) -> tuple[Engine, UnitState | None, Slot]:
    reference = _engines.get(parameter)  # type: ignore[no-untyped-call]
    engine: Engine | None = reference() if reference is not None else None
    if engine is None:
        shape = tuple(parameter.shape)
        raise ValueError(f"a tensor of shape {shape} is not a parameter of a living engine's module")
    for state in engine.states:
        for slot in state.unit.slots:
            if slot.parameter is parameter:
                return engine, state, slot
    return engine, None, Slot("", parameter, -1, 0, parameter.numel())


def _whole(engine: Engine, state: UnitState, slot: Slot, kind: str) -> Tensor:
    """A copy of one parameter's elements of a state that is kept over the extent."""
    if state.extent != state.own or not state.unit.padded:
        return slot.view(state.place.read(state, kind)).clone()
    return slot.view(engine.recently_read.whole(engine, state, kind)).clone()


def _persist(engine: Engine, state: UnitState | None, slot: Slot, modifier_rank: int | None) -> None:
    """Take the values in ``full`` over into the shard and, where they differ from its rounding, into the master."""
    if state is None:  # every rank keeps it whole, and nothing else
        if modifier_rank is not None:
            same_values(slot.parameter.data, engine.ranks, modifier_rank)
        return
    values = state.full[slot.start : slot.start + slot.numel]
    if modifier_rank is not None:
        engine.ranks.broadcast(values, modifier_rank)
    if state.sharded:
        _persist_shard(state, slot)
    if not (state.unit.trainable and state.has_master_copy):
        return
    whole = state.place.read(state, "master")
    for start, stop, master in state.state_of(slot, whole):
        edited = values[start:stop]
        new = torch.where(edited == master.to(edited.dtype), master, edited.float())
        if not _same_bits(master, new):
            master.copy_(new)
            state.place.write_master(state, whole)


def _persist_shard(state: UnitState, slot: Slot) -> None:
    lo, hi = max(state.own.start, slot.start), min(state.own.stop, slot.start + slot.numel)
    if lo >= hi:
        return
    shard, edited = state.home.load(), state.full[lo:hi]
    kept = shard[lo - state.own.start : hi - state.own.start]
    if not _same_bits(kept, edited):
        kept.copy_(edited)
        state.home.accept(0, shard, host=False).wait()


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
