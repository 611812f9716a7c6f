"""The client's own code: the tasks of a rank whose client trains in threads, catches errors, or sets hooks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from zerobench import findings, subjects
from zerobench.driver import ALL, Keep, Run, draw_batches, drive, model_for, run_step, wrap
from zerobench.model_specs import Odd
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Subject
from zerobench.subjects import client_settings, plain_settings
from zerobench.workload.changes import first_block

#: Where the client's code raises: before the model's first module has run, after its last one, or at the end of a
#: backward; or in an evaluation, before the first module or after the last one.
Place = Literal["first", "last", "backward", "evaluation, first", "evaluation, last"]


def train_in_threads(group: dist.ProcessGroup, name: str, scenario: Scenario) -> Trajectory:
    """One rank's part: build the engine in this thread, and train each step in a thread of its own.

    A new thread has torch's default number of threads for products, which round otherwise than with this one's.
    """
    as_here = partial(torch.set_num_threads, torch.get_num_threads())
    with closing(Run(subjects.load(name), scenario, group, last=ALL)) as run:
        more = True
        while more:
            with ThreadPoolExecutor(1, initializer=as_here) as thread:
                more = thread.submit(run.step).result()
        return run.recording()


@dataclass(frozen=True)
class Failing:
    """A failure: its place, and the leaf of the run before which the client tries another one that fails."""

    place: Place
    leaf: int


def train_over_a_failure(
    group: dist.ProcessGroup, name: str, scenario: Scenario, failing: Failing
) -> Trajectory | None:
    """One rank's part: before a leaf the client tries one that raises on all ranks, leaves it out and trains on; None
    if the engine refuses to go on after a backward."""
    try:
        return drive(_failing(subjects.load(name), failing), scenario, group, last=ALL)
    except _RefusedError:
        return None


class _ClientError(Exception):
    """Raised by the client's code within a backward."""


class _RefusedError(Exception):
    """The engine refuses a micro-step after one that has raised."""


def _failing(kind: type[Subject], failing: Failing) -> type[Subject]:
    leaves = itertools.count()

    def micro_step(self: Subject, batch: Batch) -> Tensor:
        now = next(leaves)
        if now == failing.leaf:
            numbers, (call, place) = torch.get_rng_state(), _called(kind, failing.place)
            fail(partial(call, self, broken(batch, place)))
            torch.set_rng_state(numbers)
        if now != failing.leaf or failing.place != "backward":
            return kind.micro_step(self, batch)
        try:
            return kind.micro_step(self, batch)
        except Exception as error:
            raise _RefusedError from error

    return type(kind.__name__, (kind,), {"micro_step": micro_step})


def _called(kind: type[Subject], place: Place) -> tuple[Callable[..., Tensor], Place]:
    """The call within which the client's code raises, and the place in its forward."""
    within = {"evaluation, first": "first", "evaluation, last": "last"}
    return (kind.evaluate, cast("Place", within[place])) if place in within else (kind.micro_step, place)


def fail(make: Callable[[], object]) -> None:
    """Make a call that raises."""
    try:
        make()
    except Exception:  # noqa: BLE001 - the client catches all
        return
    raise AssertionError("a micro-step of a broken batch does not raise")


def broken(batch: Batch, place: Place) -> Batch:
    """The batch of a model without its input or its target, or with an input whose gradient raises."""
    given, target = [name for name, value in batch.items() if isinstance(value, Tensor)][:2]
    if place != "backward":
        return {**batch, given if place == "first" else target: None}
    x = batch[given].clone().requires_grad_()
    x.register_hook(_raise)
    return {**batch, given: x}


def _raise(gradient: Tensor) -> None:
    raise _ClientError("the client's hook")


def train_with_gradients_of_inputs(
    group: dist.ProcessGroup, name: str, scenario: Scenario
) -> tuple[Trajectory, list[int]]:
    """One rank's part: train with inputs that require gradients; the micro-steps of the run that leave none."""
    kind, without, leaves = subjects.load(name), list[int](), itertools.count()

    def micro_step(self: Subject, batch: Batch) -> Tensor:
        x = batch["x"].clone().requires_grad_()
        loss, now = kind.micro_step(self, {**batch, "x": x}), next(leaves)
        if x.grad is None:
            without.append(now)
        return loss

    watched = type(kind.__name__, (kind,), {"micro_step": micro_step})
    return drive(watched, scenario, group, last=ALL), without


#: The default dtype that the client has set, as scripts do to build a model in 16 bits.
Default = Literal["float32", "bfloat16", "float64"]
#: The calls that a client makes without gradients; an evaluation is one in inference mode.
_WITHOUT_GRADIENTS = (
    "step",
    "advance",
    "parameters",
    "model_parameters",
    "gradients",
    "optimizer_state",
    "set_parameters",
    "zero_gradients",
    "save",
    "load",
)
#: The calls that a client makes under its default dtype.
_UNDER_ITS_DTYPE = ("__init__", "micro_step", "evaluate", *_WITHOUT_GRADIENTS)


def train_in_modes(group: dist.ProcessGroup, name: str, scenario: Scenario, default: Default) -> Trajectory:
    """One rank's part: evaluate in inference mode, make all other calls but the micro-steps without gradients, and all
    under a default dtype."""
    return drive(_in_modes(subjects.load(name), default), scenario, group, last=ALL)


def evaluated_in_inference_mode(kind: type[Subject], scenario: Scenario) -> Scenario:
    """The Scenario with the setting for it, if the engine has one, as a known finding describes Scenarios by it."""
    known = plain_settings.INFERENCE in kind.settings
    return scenario.but(settings=(plain_settings.INFERENCE,)) if known else scenario


def without_finding(kind: type[Subject], scenario: Scenario, default: Default) -> Default:
    """The default dtype, or the usual one if a known finding of the engine is of it."""
    sixteen = scenario.but(settings=(*scenario.settings, client_settings.SIXTEEN))
    return "float32" if findings.matching(kind, sixteen) is not None else default


def _in_modes(kind: type[Subject], default: Default) -> type[Subject]:
    """The engine with each of its calls in the client's modes."""
    modes: dict[str, list[Callable[[], AbstractContextManager[Any]]]] = {name: [] for name in _UNDER_ITS_DTYPE}
    modes["evaluate"].append(torch.inference_mode if kind.evaluates_in_inference_mode else torch.no_grad)
    for name in _WITHOUT_GRADIENTS:
        modes[name].append(torch.no_grad)
    for made in modes.values():
        made.append(partial(_default_dtype, getattr(torch, default)))
    return type(kind.__name__, (kind,), {name: _within(getattr(kind, name), made) for name, made in modes.items()})


def _within(call: Callable[..., Any], modes: Iterable[Callable[[], AbstractContextManager[Any]]]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            return call(*args, **kwargs)

    return made


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


#: The hooks by which the client halves all gradients: on each trained parameter, set before or after the engine is
#: built; or on the whole model, set after it: on its output, or on the gradient of its output. Or those by which it
#: halves the input of the first block, its output, or the gradient of its output, set before or after. Or those that
#: halve the block's input and output in the first step alone: set before, and later without an effect; or set after,
#: and removed between two steps.
Hooks = Literal[
    "parameters",
    "late parameters",
    "output",
    "output's gradient",
    "block",
    "late block",
    "block's output",
    "late block's output",
    "block's gradient",
    "late block's gradient",
    "block's first step",
    "removed from the block",
]
_EARLY: tuple[Hooks, ...] = "parameters", "block", "block's output", "block's gradient", "block's first step"
#: The hooks before the engine is built with which an engine has the bits that it has with these after it.
EARLIER: dict[Hooks, Hooks] = {
    "late block": "block",
    "late block's output": "block's output",
    "late block's gradient": "block's gradient",
    "removed from the block": "block's first step",
}


def hooked(scenario: Scenario, hooks: Hooks) -> Scenario:
    """The Scenario for these hooks: torch's hooks on the gradients of a module allow no edit in place of its output,
    which has to be a tensor, and recomputation would run them twice."""
    if hooks != "late block's gradient" or not isinstance(scenario.model, Odd):
        return scenario
    return scenario.but(model=replace(scenario.model, in_place=False, structured=False, recompute="none"))


def train_with_halves(group: dist.ProcessGroup, name: str, scenario: Scenario, hooks: Hooks | None) -> Trajectory:
    """One rank's part: train with halves, by hooks of the client, or by halves of the losses."""
    rank, kind, steps = dist.get_rank(group), subjects.load(name), list[Step]()
    model, factor = model_for(kind, scenario, rank), 0.5 if hooks is None else 1.0
    end = _halve(model, hooks) if hooks in _EARLY else None
    with closing(wrap(model, kind, scenario, group)) as subject:
        if hooks is not None and hooks not in _EARLY:
            end = _halve(model, hooks)
        for index in range(scenario.steps):
            if index == 1 and end is not None:
                end()
            batches = [
                {**batch, "scale": batch.get("scale", 1.0) * factor} for batch in draw_batches(scenario, index, rank)
            ]
            kept: Keep = ALL if index == scenario.steps - 1 else frozenset()
            steps.append(run_step(subject, scenario, index, rank, kept, batches=batches))
    return Trajectory(name, scenario, rank, steps)


def _halve(model: nn.Module, hooks: Hooks) -> Callable[[], None] | None:
    """Set the hooks; the result ends their effect before the second step, if they are of the first one alone."""
    if hooks in ("block's first step", "removed from the block"):
        return _halve_at_first(first_block(model), removed=hooks == "removed from the block")
    if hooks == "output":
        model.register_forward_hook(lambda module, given, loss: loss * 0.5)
    elif "block" in hooks:
        _halve_block(first_block(model), hooks)
    elif hooks == "output's gradient":
        model.register_full_backward_pre_hook(_halves)
    else:
        for parameter in (each for each in model.parameters() if each.requires_grad):
            parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return None


def _halve_at_first(block: nn.Module, *, removed: bool) -> Callable[[], None]:
    factors = [0.5]

    def halve_input(module: nn.Module, given: Any) -> Any:
        return (given[0] * 0.5, *given[1:]) if factors else None

    def halve_output(module: nn.Module, given: Any, output: Any) -> Any:
        return tree_map_only(Tensor, lambda each: each * 0.5, output) if factors else None

    handles = block.register_forward_pre_hook(halve_input), block.register_forward_hook(halve_output)

    def end() -> None:
        if not removed:
            factors.clear()
            return
        for each in handles:
            each.remove()

    return end


def _halve_block(block: nn.Module, hooks: Hooks) -> None:
    if hooks.endswith("output"):
        block.register_forward_hook(
            lambda module, given, output: tree_map_only(Tensor, lambda each: each * 0.5, output)
        )
    elif hooks.endswith("gradient"):
        block.register_full_backward_pre_hook(_halves)
    else:
        block.register_forward_pre_hook(lambda module, given: (given[0] * 0.5, *given[1:]))


def _halves(module: nn.Module, gradients: Any) -> Any:
    return tuple(None if each is None else each * 0.5 for each in gradients)


def train_side_by_side(group: dist.ProcessGroup, name: str, scenario: Scenario, beside: Scenario) -> Trajectory:
    """One rank's part: two engines, each of a group of its own, train at the same time in a thread each; the recording
    of the first one. They are built and closed one after the other."""
    kind, other_group = subjects.load(name), _second_groups[scenario.world]
    with closing(Run(kind, scenario, group, last=ALL)) as one, closing(Run(kind, beside, other_group)) as other:
        with ThreadPoolExecutor(2) as threads:
            for ended in [threads.submit(_to_the_end, run) for run in (one, other)]:
                ended.result()
        return one.recording()


def make_second_groups(group: dist.ProcessGroup) -> None:
    """Every process's part: make a second group of the first n ranks, for each n; once in a process."""
    if not _second_groups:
        _second_groups.update({n: dist.new_group(range(n)) for n in range(1, dist.get_world_size() + 1)})


_second_groups: dict[int, dist.ProcessGroup] = {}


def train_on_the_last_ranks(group: dist.ProcessGroup, name: str, scenario: Scenario) -> Trajectory | None:
    """The part of each rank of a larger group: the run in a group of the last ones; None on the others."""
    world = dist.get_world_size(group)
    if not _last_groups:
        _last_groups.update({n: dist.new_group(range(world - n, world)) for n in range(1, world)})
    if dist.get_rank(group) < world - scenario.world:
        return None
    return drive(subjects.load(name), scenario, _last_groups[scenario.world], last=ALL)


_last_groups: dict[int, dist.ProcessGroup] = {}


def _to_the_end(run: Run) -> None:
    torch.set_num_threads(1)  # a new thread has torch's default
    while run.step():
        pass
