"""The order of parameter touches and of gradient completion in a pass through a zerobench model.

It follows from the models' structure (:mod:`zerobench.workload.models`) and from the values that autograd saves: a
linear layer saves its weight if its input has a gradient, or under autocast a copy of it. A LayerNorm saves its weight,
a product its factors, an embedding and a sum nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Literal

from torch import nn

from zerobench.model_specs import Gpt, Odd, Recompute, Vit
from zerobench.scenario import Scenario
from zerobench.workload.models.odd_blocks import Nested


@dataclass(frozen=True)
class Event:
    """One use of parameters in a pass, by name.

    ``use``: a forward (or its recomputation) needs them while a module runs. ``enter``: it needs them until ``return``,
    as it does the parameters of other modules (``borrow``) in between. ``keep``: it needs them from here to the
    forward's end. ``saved``: a backward needs them. ``complete``: their gradients are complete. ``turn``: the forward
    ends and the backward begins.
    """

    kind: Literal["use", "enter", "borrow", "return", "keep", "saved", "complete", "turn"]
    names: tuple[str, ...] = ()


def events(scenario: Scenario, model: nn.Module, route: bool) -> list[Event]:
    """The events of one micro-step; ``route`` is that of its batch (if the model is odd)."""
    spec = scenario.model
    if isinstance(spec, Gpt):
        forward, backward = list(_gpt_forward(spec, model)), list(_gpt_backward(spec, model))
    elif isinstance(spec, Vit):
        forward, backward = list(_vit_forward(spec, model)), list(_vit_backward(spec, model))
    else:
        forward, backward = list(_odd_forward(spec, model, route)), list(_odd_backward(spec, model, route))
    return [*forward, Event("turn"), *(_under_autocast(model, backward) if scenario.autocast else backward)]


def _under_autocast(model: nn.Module, backward: list[Event]) -> list[Event]:
    """Backward if linear layers cast their parameters, the bias first.

    A layer saves a copy of its matrix, and the matrix's gradient is complete before the bias's.
    """
    found: list[Event] = []
    for event in backward:
        if event.kind == "saved" and _are_matrices(model, event.names):
            continue
        if event.kind == "complete" and found and found[-1] == _of_bias(event):
            found.insert(-1, event)
        else:
            found.append(event)
    return found


def _are_matrices(model: nn.Module, names: tuple[str, ...]) -> bool:
    return all(model.get_parameter(name).dim() == 2 for name in names)


def _of_bias(event: Event) -> Event:
    """The same event of the bias beside a weight."""
    return Event(event.kind, tuple(f"{name.removesuffix('weight')}bias" for name in event.names))


def _gpt_forward(spec: Gpt, model: nn.Module) -> Iterator[Event]:
    for name in ("tokens", "positions", *(f"blocks.{i}" for i in range(spec.layers)), "norm"):
        yield _use(model, name)
    yield Event("keep", ("tokens.weight",)) if spec.tied else _use(model, "head")


def _gpt_backward(spec: Gpt, model: nn.Module) -> Iterator[Event]:
    head = "tokens.weight" if spec.tied else "head.weight"
    yield Event("saved", (head,))
    if not spec.tied:
        yield Event("complete", (head,))
    yield from _norm(model, "norm")
    for i in reversed(range(spec.layers)):
        yield from _block(model, f"blocks.{i}", _TRANSFORMER_BLOCK, spec.recompute)
    yield Event("complete", ("positions.weight",))
    yield Event("complete", ("tokens.weight",))


def _vit_forward(spec: Vit, model: nn.Module) -> Iterator[Event]:
    yield Event("keep", ("class_token",))
    for name in ("patches", "positions", *(f"blocks.{i}" for i in range(spec.layers)), "norm", "head"):
        yield _use(model, name)


def _vit_backward(spec: Vit, model: nn.Module) -> Iterator[Event]:
    yield from _linear("head")
    yield from _norm(model, "norm")
    for i in reversed(range(spec.layers)):
        yield from _block(model, f"blocks.{i}", _TRANSFORMER_BLOCK, spec.recompute)
    for name in ("positions.weight", "class_token", "patches.bias", "patches.weight"):
        yield Event("complete", (name,))


_TRANSFORMER_BLOCK = ("down", "up", "norm2", "attention.out", "attention.qkv", "norm1")  # in the order of backward
_ODD_BLOCK = ("down", "up", "norm")
_NESTED_BLOCK = ("gain", *(f"layers.0.{layer}" for layer in _ODD_BLOCK))


def _odd_forward(spec: Odd, model: nn.Module, route: bool) -> Iterator[Event]:
    yield Event("keep", _held(model, ""))
    yield _use(model, "stem")
    if spec.functional:
        yield Event("keep", ("side.weight",))
    for name in _part(spec):
        yield Event("keep", (name,))
    if spec.no_grad and spec.hidden:
        yield from _call(model, "blocks.0")
    for name in _odd_calls(spec, route):
        yield from _call(model, name)
    if spec.tied:
        yield Event("keep", ("head.bias",))
        yield Event("keep", ("stem.weight",))
    else:
        yield _use(model, "head")


def _odd_backward(spec: Odd, model: nn.Module, route: bool) -> Iterator[Event]:
    if spec.empty:
        yield Event("complete", ("empty",))
    if spec.scalar:
        yield from _factor("scalar")
    yield Event("saved", ("stem.weight" if spec.tied else "head.weight",))
    yield Event("complete", ("head.bias",))
    if not spec.tied:
        yield Event("complete", ("head.weight",))
    calls = _odd_calls(spec, route)
    stopped = spec.stopped and not route
    for position, name in reversed(list(enumerate(calls))[stopped:]):
        # A gradient is complete only after the backward of the parameter's first use.
        before = {each for call in calls[stopped:position] for each in _parameters(model, call)}
        layers = _NESTED_BLOCK if isinstance(model.get_submodule(name), Nested) else _ODD_BLOCK
        yield from _block(model, name, layers, spec.recompute, before.union(_part(spec)))
    yield from _odd_prologue(spec)


def _odd_prologue(spec: Odd) -> Iterator[Event]:
    """Backward of the part before the blocks; the data have no gradient, so stem and side save no weight."""
    if _part(spec):
        yield from _linear("blocks.0.down")
        yield from _linear("blocks.0.up")
    if spec.high:  # the product saves their sums, which are no parameters
        yield Event("complete", ("four",))
        yield Event("complete", ("three",))
    if spec.tiny:
        yield Event("complete", ("two",))
        yield from _factor("one")
    if spec.transposed:
        yield from _factor("transposed")
    if spec.functional:
        yield Event("complete", ("side.weight",))
    yield Event("complete", ("stem.bias",))
    yield Event("complete", ("stem.weight",))


def _odd_calls(spec: Odd, route: bool) -> list[str]:
    """The blocks in the order of their calls, each by its first name in the list of blocks."""
    own = len(spec.hidden) + spec.frozen + (spec.tied_blocks and bool(spec.hidden)) + spec.nested
    again = spec.listed_twice and bool(spec.hidden)
    calls = [f"blocks.{i}" for i in range(own)] + ["blocks.0"] * again
    calls += [f"blocks.{own + again}"] * (spec.routed and route)
    return calls[:1] + calls if spec.reused else calls


def _part(spec: Odd) -> tuple[str, ...]:
    """The parameters of the linears that the root's forward calls, in the order of their uses."""
    linears = ("blocks.0.up", "blocks.0.down") if spec.part_alone and spec.hidden else ()
    return tuple(f"{linear}.{name}" for linear in linears for name in ("weight", "bias"))


def _block(
    model: nn.Module, name: str, layers: tuple[str, ...], recompute: Recompute, before: Set[str] = frozenset()
) -> Iterator[Event]:
    """Backward of a block; recomputation first uses all of it, and without reentry keeps the units of its backward.

    ``before`` are the parameters whose gradients a later backward completes.
    """
    if recompute != "none":
        yield from _call(model, name)
    first = _first_names(model)
    for layer in layers:
        for event in _layer(model, f"{name}.{layer}"):
            names = tuple(first[each] for each in event.names)
            if event.kind == "complete":
                yield Event("complete", tuple(each for each in names if each not in before))
            elif recompute != "non_reentrant":
                yield Event("saved", names)


def _layer(model: nn.Module, name: str) -> Iterator[Event]:
    """Backward of a linear layer, a norm or a product with a parameter."""
    if name.endswith(".gain"):
        return _factor(name)
    return _linear(name) if isinstance(model.get_submodule(name), nn.Linear) else _norm(model, name)


def _linear(name: str) -> Iterator[Event]:
    """The bias's gradient is complete before the weight's, which is first transposed."""
    yield Event("saved", (f"{name}.weight",))
    yield Event("complete", (f"{name}.bias",))
    yield Event("complete", (f"{name}.weight",))


def _norm(model: nn.Module, name: str) -> Iterator[Event]:
    for parameter in _held(model, name):
        yield Event("saved", (parameter,))
    for parameter in _held(model, name):
        yield Event("complete", (parameter,))


def _factor(name: str) -> Iterator[Event]:
    yield Event("saved", (name,))
    yield Event("complete", (name,))


def _use(model: nn.Module, name: str) -> Event:
    """A module's forward: it uses all of its parameters."""
    return Event("use", tuple(f"{name}.{n}" for n, _ in model.get_submodule(name).named_parameters()))


def _call(model: nn.Module, name: str) -> Iterator[Event]:
    """A block's forward, which may use matrices of another block."""
    parameters = _parameters(model, name)
    tied = [each for each in parameters if not each.startswith(f"{name}.")]
    if not tied:
        yield _use(model, name)
        return
    yield Event("enter", tuple(each for each in parameters if each not in tied))
    for each in tied:
        yield Event("borrow", (each,))
    yield Event("return")


def _parameters(model: nn.Module, name: str) -> tuple[str, ...]:
    """The parameters of a module, each by its first name in the model."""
    return tuple(first for each, first in _first_names(model).items() if each.startswith(f"{name}."))


def _first_names(model: nn.Module) -> dict[str, str]:
    """By each name of a parameter, the one by which ``named_parameters()`` lists it."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    return {name: first[parameter] for name, parameter in model.named_parameters(remove_duplicate=False)}


def _held(model: nn.Module, name: str) -> tuple[str, ...]:
    """The parameters that a module holds itself."""
    prefix = f"{name}." if name else ""
    return tuple(prefix + n for n, _ in model.get_submodule(name).named_parameters(recurse=False))
