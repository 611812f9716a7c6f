"""The client's side of a run: the calls that it makes between steps, and all that an engine must leave to it."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench import findings, subjects
from zerobench.driver import (
    ALL,
    Keep,
    directory_of,
    draw_batches,
    finish,
    flat,
    model_for,
    prepare,
    run_step,
    run_steps,
    start,
    wrap,
)
from zerobench.judge.difference import same_bits
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Batch, State, Subject
from zerobench.workload.changes import edited, first_block
from zerobench.workload.data import held_out, part_of_larger, seed_leaf


@dataclass(frozen=True)
class Changed:
    """An object of the client or of torch that a call has changed; ``str()`` is the message."""

    subject: str
    scenario: Scenario
    rank: int
    name: str  # ``object, by call``
    step: int | None = None
    part: str = "client"
    owner: str = "the client"

    def __str__(self) -> str:
        return f"{self.subject} changes an object of {self.owner}\n  where     {self.name}\n  rank      {self.rank}"


#: Hyperparameters that a client sets, and that only it changes.
_HYPERPARAMETERS = ("lr", "weight_decay", "betas", "momentum", "eps", "lr_decay")


def train_and_save(group: dist.ProcessGroup, name: str, scenario: Scenario, saves: tuple[int, ...]) -> Trajectory:
    """One rank's part: save before each of the steps in ``saves``, as often as it is there, and train on."""
    rank, steps = dist.get_rank(group), list[Step]()
    with closing(start(subjects.load(name), scenario, group)) as subject, directory_of(group) as directory:
        for index in range(scenario.steps):
            for _ in range(saves.count(index)):
                subject.save(directory)
            steps.append(run_step(subject, scenario, index, rank, _kept(scenario, index)))
    return Trajectory(name, scenario, rank, steps)


def train_unread(group: dist.ProcessGroup, name: str, scenario: Scenario) -> Trajectory:
    """One rank's part: ask for the outcome of the last step alone. The recording has this step alone.

    The client gives all batches in the same tensors, parts of larger ones, as a loader that fills its memory again.
    """
    rank, memory = dist.get_rank(group), dict[str, Tensor]()
    with closing(start(subjects.load(name), scenario, group)) as subject:
        for index in range(scenario.steps - 1):
            run_steps(subject, scenario, index, rank, [_reused(draw_batches(scenario, index, rank), memory)])
        last = run_step(subject, scenario, scenario.steps - 1, rank, ALL)
    return Trajectory(name, scenario, rank, [last])


def _reused(batches: Iterable[Batch], memory: dict[str, Tensor]) -> Iterator[Batch]:
    """Each batch, in the tensors of the one before if they have its shape; other values are there once its micro-step
    has ended."""
    for batch in batches:
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        for name, value in tensors.items():
            if name not in memory or memory[name].shape != value.shape:
                memory[name] = part_of_larger(value)
            memory[name].copy_(value)
        yield {**batch, **{name: memory[name] for name in tensors}}
        for name in tensors:
            memory[name].zero_()


def _kept(scenario: Scenario, index: int) -> Keep:
    return ALL if index == scenario.steps - 1 else frozenset()


def offers_saving(subject: type[Subject], scenario: Scenario) -> bool:
    """Whether the engine offers save() and load() in this Scenario."""
    return subject.not_offered(scenario.but(resumes=(1,))) is None


def offers_returning(subject: type[Subject], scenario: Scenario) -> bool:
    """Whether the engine offers to load what it has saved itself."""
    return subject.not_offered(scenario.but(resumes=(1,), loads_into="same")) is None


def offers_edits(subject: type[Subject], scenario: Scenario) -> bool:
    """Whether the client of the engine can set parameters in this Scenario."""
    return subject.not_offered(scenario.but(edits=(1,))) is None


@dataclass(frozen=True)
class Offers:
    """The calls between steps that the engine offers: saves, loads of what it has saved itself, and edits."""

    saves: bool
    returns: bool
    edits: bool

    @classmethod
    def of(cls, subject: type[Subject], scenario: Scenario) -> Offers:
        """Those in a Scenario; of the loads, those that no known finding describes."""
        resumed = scenario.but(resumes=(1,), loads_into="same")
        returns = offers_returning(subject, scenario) and findings.matching(subject, resumed) is None
        return cls(offers_saving(subject, scenario), returns, offers_edits(subject, scenario))


def changed(group: dist.ProcessGroup, name: str, scenario: Scenario, offers: Offers) -> list[str]:
    """One rank's part: the client's objects that a call of the engine has changed, as ``object, by call``.

    The client draws random numbers before each call, as a data loader does. Up to the evaluation of each step one
    block is in evaluation mode, as if the client trained the others alone.
    """
    rank, subject_type = dist.get_rank(group), subjects.load(name)
    model = model_for(subject_type, scenario, rank)
    _draw_numbers()
    torch.set_float32_matmul_precision("highest")  # an engine that has been here may have left another one
    before = _of_process()
    found: list[str] = []
    with closing(wrap(model, subject_type, scenario, group)) as subject, directory_of(group) as directory:
        found += _differing("building", before, _of_process())
        _mark(model)
        within = partial(_of_model, subject, model, scenario)
        state = partial(_with_attributes, within, model)
        for index in range(scenario.steps):
            prepare(subject, scenario, index)
            marks = _attributes(model)
            first_block(model).eval()
            for micro_step, batch in enumerate(draw_batches(scenario, index, rank)):
                seed_leaf(scenario, index, micro_step * scenario.world + rank)
                found += _changed_by("micro_step", within, batch, partial(subject.micro_step, batch))
            finish(subject, scenario, index)
            readings = _Readings()
            found += _changed_by("gradients", within, {}, subject.gradients)
            found += _changed_by("step", within, {}, subject.step)
            found += _differing("a step", marks, _attributes(model))
            for call, make in _calls_between_steps(subject, directory, offers).items():
                found += _changed_by(call, state, {}, partial(readings.make, call, make))
            first_block(model).train()
            batch = held_out(scenario)
            found += _changed_by("evaluate", state, batch, partial(subject.evaluate, batch))
            found += readings.changed()
            found += _changed_by_edit(subject, state, edited(scenario, index)) if offers.edits else ()
        before = _of_process()
    return found + _differing("close", before, _of_process())


def _mark(model: nn.Module) -> None:
    """Give each parameter and buffer an attribute, as clients do that note which parameters have no weight decay, or
    that keep a buffer to read it later."""
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        each.of_client = name  # type: ignore[attr-defined]


class _Readings:
    """The values that readings between two steps have returned, and copies of what they were."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    def make(self, call: str, read: Callable[[], Any]) -> None:
        """Make a call; if it reads a state after the update, remember what it returns."""
        value = read()
        if call in ("parameters", "model_parameters", "optimizer_state"):
            state = flat(value) if call == "optimizer_state" else value
            self._kept |= {f"{name}, read by {call}": (each, each.clone()) for name, each in state.items()}

    def changed(self) -> list[str]:
        """The values that a later call has changed: a client may keep them until it trains on."""
        return [f"{name}, by a later call" for name, pair in self._kept.items() if not same_bits(*pair)]


def _calls_between_steps(subject: Subject, directory: Path, offers: Offers) -> dict[str, Callable[[], object]]:
    """The calls after the update, in order; a load is of the state that has just been saved."""
    made: dict[str, Callable[[], object]] = {
        "parameters": subject.parameters,
        "model_parameters": subject.model_parameters,
        "optimizer_state": subject.optimizer_state,
    }
    made |= {"save": lambda: subject.save(directory)} if offers.saves else {}
    return made | ({"load": lambda: _load(subject, directory)} if offers.saves and offers.returns else {})


def _load(subject: Subject, directory: Path) -> None:
    """Load the state; if a load sets the random generators, the client sets them to their states before it. The client
    saves its own state, and not the one that the load returns."""
    own = subject.client_state
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - the global generator
    subject.load(directory)
    subject.client_state = own
    if subject.restores_generators:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002 - the global generator


def _changed_by(
    call: str, state: Callable[[], dict[str, object]], batch: Batch, make: Callable[[], object]
) -> Iterator[str]:
    given = {name: value.clone() for name, value in batch.items() if isinstance(value, Tensor)}
    _draw_numbers()
    before = _of_process() | state()
    make()
    yield from _differing(call, before, _of_process() | state())
    yield from (f"batch {name}, by {call}" for name, value in given.items() if not torch.equal(value, batch[name]))


def _changed_by_edit(subject: Subject, state: Callable[[], dict[str, object]], values: State) -> Iterator[str]:
    """The same for values that the client sets; afterwards it writes to their memory, which is the client's own."""
    given = {name: value.clone() for name, value in values.items()}
    yield from _changed_by("set_parameters", state, values, partial(subject.set_parameters, values))
    for value in values.values():
        value.zero_()
    now = subject.parameters()
    yield from (f"{name}, by a write to the value of set_parameters" for name in given if not _same(given, now, name))


def _same(given: State, now: State, name: str) -> bool:
    return torch.equal(given[name], now[name].detach().cpu())


def _draw_numbers() -> None:
    """Otherwise a seed that was set before would be set again, and nothing would change."""
    torch.rand(1)
    random.random()  # noqa: S311 - no secret
    np.random.rand()  # noqa: NPY002 - the global generator


def _differing(call: str, before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [f"{thing}, by {call}" for thing, value in before.items() if after.get(thing) != value]


def _of_process() -> dict[str, object]:
    """The settings of torch and the states of the generators."""
    return {
        "torch's random numbers": torch.get_rng_state().numpy().tobytes(),
        "Python's random numbers": hash(random.getstate()),
        "numpy's random numbers": repr(np.random.get_state()),  # noqa: NPY002 - the global generator
        "the grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the search for undefined gradients": torch.is_anomaly_enabled(),
        "the garbage collector": gc.isenabled(),
        "the working directory": Path.cwd(),
        "the signal handlers": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "small numbers": float(torch.full((1,), 1e-40) * 1),  # 0 if denormal ones are flushed
    }


def _of_model(subject: Subject, model: nn.Module, scenario: Scenario) -> dict[str, object]:
    """The modes of its modules, the parameters that train, and the hyperparameters that the client sets."""
    found: dict[str, object] = {f"the mode of {name or 'the model'}": m.training for name, m in model.named_modules()}
    found |= {f"requires_grad of {name}": p.requires_grad for name, p in model.named_parameters()}
    groups = subject.param_groups() if subject.schedules else ()
    keys = [key for key in _HYPERPARAMETERS if not (key == "lr" and scenario.engine_schedules)]
    set_by_client = ((i, key, group[key]) for i, group in enumerate(groups) for key in keys if key in group)
    return found | {f"{key} of group {i}": value for i, key, value in set_by_client}


def _attributes(model: nn.Module) -> dict[str, object]:
    """The client's attributes of parameters and buffers. Within a step an engine may have other objects in place of its
    shards, as FSDP2 has if it does not reshard after a backward."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {f"the attribute of {name}": getattr(each, "of_client", None) for name, each in tensors}


def _with_attributes(state: Callable[[], dict[str, object]], model: nn.Module) -> dict[str, object]:
    return state() | _attributes(model)
