"""The order of parameter touches and of gradient completion in a pass through a zerobench model.

It follows from the models' structure (:mod:`zerobench.workload.models`) and from the values that autograd saves: a
linear layer saves its weight if its input has a gradient, a LayerNorm its weight, a product its factors, an embedding
and a sum nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from zerobench.scenario import Gpt, Odd, Scenario, Vit


@dataclass(frozen=True)
class Event:
    """One use of parameters in a pass, by name.

    ``use``: a forward (or its recomputation) needs them while a module runs; ``keep``: it needs them from here to the
    forward's end; ``saved``: a backward needs them; ``complete``: their gradients are complete. ``turn``: the forward
    ends and the backward begins.
    """

    kind: Literal["use", "keep", "saved", "complete", "turn"]
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
    return [*forward, Event("turn"), *backward]


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
        yield from _block(model, f"blocks.{i}", _TRANSFORMER_BLOCK, recompute=spec.recompute != "none")
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
        yield from _block(model, f"blocks.{i}", _TRANSFORMER_BLOCK, recompute=spec.recompute != "none")
    for name in ("positions.weight", "class_token", "patches.bias", "patches.weight"):
        yield Event("complete", (name,))


_TRANSFORMER_BLOCK = ("down", "up", "norm2", "attention.out", "attention.qkv", "norm1")  # in the order of backward
_ODD_BLOCK = ("down", "up", "norm")


def _odd_forward(spec: Odd, model: nn.Module, route: bool) -> Iterator[Event]:
    yield Event("keep", _held(model, ""))
    yield _use(model, "stem")
    if spec.functional:
        yield Event("keep", ("side.weight",))
    for name in _odd_calls(spec, route):
        yield _use(model, name)
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
    for position, name in reversed(list(enumerate(calls))):
        again = name in calls[:position]  # its gradients are complete only after its first call's backward
        yield from _block(model, name, _ODD_BLOCK, recompute=spec.recompute != "none", complete=not again)
    yield from _odd_prologue(spec)


def _odd_prologue(spec: Odd) -> Iterator[Event]:
    """Backward of the part before the blocks; the data have no gradient, so stem and side save no weight."""
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
    """The blocks in the order of their calls; the frozen block and the routed one are the last of the list."""
    count = len(spec.hidden) + spec.frozen + (spec.routed and route)
    calls = [f"blocks.{i}" for i in range(count)]
    return calls[:1] + calls if spec.reused else calls


def _block(
    model: nn.Module, name: str, layers: tuple[str, ...], *, recompute: bool, complete: bool = True
) -> Iterator[Event]:
    """Backward of a block; recomputation first uses all of it, together with the values that its backward needs."""
    if recompute:
        yield _use(model, name)
    for layer in layers:
        module = model.get_submodule(f"{name}.{layer}")
        steps = _linear(f"{name}.{layer}") if isinstance(module, nn.Linear) else _norm(model, f"{name}.{layer}")
        wanted = {"saved": not recompute, "complete": complete}
        yield from (event for event in steps if wanted[event.kind])


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


def _held(model: nn.Module, name: str) -> tuple[str, ...]:
    """The parameters that a module holds itself."""
    prefix = f"{name}." if name else ""
    return tuple(prefix + n for n, _ in model.get_submodule(name).named_parameters(recurse=False))
