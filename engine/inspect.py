"""Reading and editing sharded state. Every function here is a collective of the engine's ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from zerobench.engine.engine import Engine
from zerobench.engine.layout import Slot
from zerobench.engine.registry import engine_of, in_one_order
from zerobench.engine.replicated import same_values
from zerobench.engine.stage3.unshard import Unsharder
from zerobench.engine.state.replaced import take_over
from zerobench.engine.state.unit import UnitState


def safe_get_full_fp32_param(param: nn.Parameter) -> Tensor | None:
    """The whole fp32 value (the master weight) of a parameter, on every rank; None for a frozen one."""
    engine, state, slot = locate(param)
    if state is None or not state.unit.trainable:
        return None
    return _whole(engine, state, slot, "master")


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """The whole optimizer state of a parameter by torch's name, such as ``exp_avg``; None for a frozen one.

    Raises:
        KeyError: the optimizer has no state of this name.
    """
    engine, state, slot = locate(param)
    if state is None or not state.unit.trainable:
        return None
    check_state(engine, optim_state_key)
    return _whole(engine, state, slot, optim_state_key)


def safe_get_full_grad(param: nn.Parameter) -> Tensor | None:
    """The whole fp32 mean gradient of a parameter: loss scale undone, not clipped. None if no leaf has a gradient.

    Call it between the last ``backward()`` of a step and its ``step()``.
    """
    engine, state, slot = locate(param)
    if state is None or not state.unit.trainable:
        return None
    cache = engine.read_cache
    if not cache.active(engine.reducer.active, state.full.device)[slot.index]:
        return None
    return slot.view(cache.whole(state, "gradient")).float() * (1 / (engine.leaves * engine.loss_scale))


@contextmanager
def GatheredParameters(
    parameters: Iterable[nn.Parameter] | nn.Parameter | nn.Module, modifier_rank: int | None = None
) -> Iterator[None]:
    """Make the parameters whole on every rank within the context; edits made inside persist on every rank.

    If ``modifier_rank`` is given, the values of that rank persist. Otherwise every rank must make the same edit, and
    each owner keeps its part. In low precision the fp32 master of an edited element becomes the edited value, and all
    other masters stay: at the next step, reading or save, so that values that are put back before it, as after an
    evaluation of averaged weights, change nothing. If the context raises, no edit of a sharded parameter persists.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    chosen = [parameters] if isinstance(parameters, nn.Parameter) else in_one_order(parameters)
    found = [_found(parameter) for parameter in chosen]
    unsharders = _by_unsharder(found)
    for unsharder, states in unsharders.items():
        unsharder.begin("reading")
        unsharder.pin([*states], states)
        unsharder.hold(_whole_units(states))
        unsharder.enter(states)
    try:
        try:
            with _saving(engine for engine, *_ in found):
                yield
        finally:
            for unsharder, states in unsharders.items():
                unsharder.release(_whole_units(states))
                unsharder.leave(states)
        take_over((state, slot) for _, state, slot in found if state is not None and state.bound)
        for engine, state, slot in found:
            _persist(engine, state, slot, modifier_rank)
            engine.read_cache.clear()
        for states in unsharders.values():
            for state, slots in states.items():
                state.take_shards(slots)
    except BaseException:
        for unsharder, states in unsharders.items():
            unsharder.unpin(states)
            unsharder.reshard_all()  # an edit that does not persist must not be used
            unsharder.hold([])  # of an outer context
        raise
    for unsharder, states in unsharders.items():
        unsharder.unpin(states)
        unsharder.finish()
        unsharder.hold([])  # of an outer context


@contextmanager
def _saving(engines: Iterable[Engine]) -> Iterator[None]:
    """Let a backward have the values of parameters that a graph of the context uses, as a weight penalty does."""
    with ExitStack() as stack:
        for engine in dict.fromkeys(engines):
            if engine.hooks is not None:
                stack.enter_context(engine.hooks.saving())
        yield


def _by_unsharder(
    found: Iterable[tuple[Engine, UnitState | None, Slot]],
) -> dict[Unsharder, dict[UnitState, set[Slot]]]:
    """The sharded units of parameters with these parameters, by the object that unshards them."""
    unsharders: dict[Unsharder, dict[UnitState, set[Slot]]] = {}
    for engine, state, slot in found:
        if engine.unsharder is not None:
            units = unsharders.setdefault(engine.unsharder, {})
            if state is not None and state.sharded:
                units.setdefault(state, set()).add(slot)
    return unsharders


def _whole_units(chosen: dict[UnitState, set[Slot]]) -> list[UnitState]:
    """Those of which every parameter is chosen."""
    return [state for state, slots in chosen.items() if len(slots) == len(state.unit.slots)]


def keep_edits(parameters: Iterable[nn.Parameter]) -> None:
    """Have the masters of edited elements become the edited values, as ``GatheredParameters`` does; no collective.

    Every rank must have made the same edit. Sharded parameters, which only that context makes whole, are left out.
    """
    for parameter in parameters:
        engine, state, slot = _found(parameter)
        if state is not None and not state.sharded:
            _persist(engine, state, slot, None)
            engine.read_cache.clear()


def check_state(engine: Engine, name: str) -> None:
    """Demand that the engine's optimizer has a state of this name.

    Raises:
        KeyError: it has not.
    """
    names = engine.optimizer.state_names
    if name not in names:
        raise KeyError(f"no optimizer state {name!r}; there is {', '.join(names) or 'none'}")


def locate(parameter: nn.Parameter) -> tuple[Engine, UnitState | None, Slot]:
    """The parameter's engine, unit and slot; no unit if every rank keeps it whole and it does not train.

    If a caller has replaced its data or edited parameters, the masters have the new values afterwards.
    """
    found = _found(parameter)
    found[0].read_cache.follow_edits()
    return found


def _found(parameter: nn.Parameter) -> tuple[Engine, UnitState | None, Slot]:
    engine: Engine = engine_of(parameter)
    for state in engine.states:
        for slot in state.unit.slots:
            if slot.parameter is parameter:
                if not state.sharded and slot.replaced(state.full):
                    engine.keep_replaced(leave_converted=True)
                return engine, state, slot
    return engine, None, Slot("", parameter, -1, 0, parameter.numel())


def _whole(engine: Engine, state: UnitState, slot: Slot, kind: str) -> Tensor:
    """A copy of one parameter's elements of a state that is kept over the extent."""
    if state.extent == state.own and state.unit.padded:
        return slot.view(engine.read_cache.whole(state, kind)).clone()
    own = state.optimizer_store.read(state.portion, kind, slot.start, slot.start + slot.numel)
    return slot.view(own, -slot.start).clone()


def _persist(engine: Engine, state: UnitState | None, slot: Slot, modifier_rank: int | None) -> None:
    """Have the values in ``full`` on every rank; they become the master's later, except if they are its rounding."""
    if state is None:  # every rank keeps the parameter whole, and no other state of it
        if modifier_rank is not None:
            same_values(slot.parameter.data, engine.ranks, modifier_rank)
        return
    if modifier_rank is not None:
        engine.ranks.broadcast(state.full[slot.start : slot.start + slot.numel], modifier_rank)
    state.written.add(slot)
