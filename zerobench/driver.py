"""Drive a subject through a Scenario on one rank and record the run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zerobench.errors import UsageError
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Read, Scenario, scaled
from zerobench.subject import Batch, State, Subject
from zerobench.workload import changes, models
from zerobench.workload.client_values import client_state, given_back
from zerobench.workload.data import held_out, leaf, seed_leaf
from zerobench.workload.forwards import casting
from zerobench.workload.groups import scheduled_values

#: The states that a recording may hold of every step.
RecordedState = Literal["gradients", "parameters", "model_parameters", "optimizer_state"]
Keep = frozenset[RecordedState]
ALL: Keep = frozenset(("gradients", "parameters", "model_parameters", "optimizer_state"))


def drive(
    subject_type: type[Subject],
    scenario: Scenario,
    group: dist.ProcessGroup,
    keep: Keep = frozenset(),
    *,
    last: Keep = frozenset(),
    evaluate: bool = False,
) -> Trajectory:
    """Train a Scenario from start to end; every rank of ``group`` calls it and gets its own recording.

    ``keep`` is recorded of every step, ``last`` of the last one as well: reading costs more than training.

    The subject is always closed. The caller checks first if it offers the Scenario.

    Raises:
        UsageError: if the Scenario's model or data are invalid.
    """
    run = Run(subject_type, scenario, group, keep, last=last, evaluate=evaluate)
    with closing(run):
        while run.step():
            pass
        return run.recording()


class Run:
    """A Scenario under way on one rank, so that several can take turns in one process.

    :meth:`step` runs the next step with its reads and returns False after the last. Then :meth:`end` has the recording.
    """

    def __init__(
        self,
        subject_type: type[Subject],
        scenario: Scenario,
        group: dist.ProcessGroup,
        keep: Keep = frozenset(),
        *,
        last: Keep = frozenset(),
        evaluate: bool = False,
    ) -> None:
        self.scenario, self.rank, self.keep, self.last, self.evaluate = (
            scenario,
            dist.get_rank(group),
            keep,
            last,
            evaluate,
        )
        self.group, self.steps = group, list[Step]()
        self._saved: Path | None = None
        self.subject = start(subject_type, scenario, group)

    def _resume(self, step: int) -> State:
        self._saved = self._saved or shared_directory(self.group)
        self.subject = resumed(self.subject, self.scenario, self.group, self._saved, step)
        return loaded_client_state(self.subject, self.scenario, step)

    def step(self) -> bool:
        """Run the next step; returns whether another one follows."""
        index = len(self.steps)
        loaded = self._resume(index) if index in self.scenario.resumes else {}
        ends = index == self.scenario.steps - 1
        self.steps.append(
            run_step(self.subject, self.scenario, index, self.rank, self.keep | (self.last if ends else frozenset()))
        )
        self.steps[-1].progress |= loaded
        return not ends

    def recording(self) -> Trajectory:
        """The recording of all steps, and of an evaluation now if one is asked for."""
        found = evaluation(self.subject, self.scenario) if self.evaluate else None
        return Trajectory(self.subject.name, self.scenario, self.rank, self.steps, found)

    def end(self) -> Trajectory:
        """The recording; the subject is closed."""
        with closing(self):
            return self.recording()

    def close(self) -> None:
        """Close the subject, and remove its checkpoints."""
        self.subject.close()
        if self._saved is not None and self.rank == 0:
            shutil.rmtree(self._saved, ignore_errors=True)


def start(subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup) -> Subject:
    """Build the Scenario's model and put it into a subject; the caller closes it."""
    return wrap(model_for(subject_type, scenario, dist.get_rank(group)), subject_type, scenario, group)


def wrap(model: nn.Module, subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup) -> Subject:
    """Put a model into a subject; the caller closes it.

    torch keeps its number of threads, which decides the order in which backward adds: Accelerate sets another one.

    Raises:
        UsageError: the Scenario needs a method that the subject does not have.
    """
    if reason := subject_type.lacks(scenario):
        raise UsageError(reason)
    threads = torch.get_num_threads()
    try:
        subject = subject_type(model, scenario, group)
    finally:
        torch.set_num_threads(threads)
    if scenario.schedules:
        subject.initial_groups = [
            {name: value for name, value in each.items() if name != "params"} for each in subject.param_groups()
        ]
    if scenario.frozen_steps:
        subject.first_block = changes.first_block(model)
    return subject


def resumed(subject: Subject, scenario: Scenario, group: dist.ProcessGroup, directory: Path, step: int) -> Subject:
    """A subject that has loaded the state of ``subject`` before a step: a new one, or itself. A collective."""
    save(subject, scenario, directory, step)
    if scenario.loads_into == "same":
        go_astray(subject, scenario, step, dist.get_rank(group))
        subject.load(directory)
        return subject
    subject.close()
    return loaded(type(subject), scenario, group, directory, step)


def go_astray(subject: Subject, scenario: Scenario, step: int, rank: int) -> None:
    """Take step ``step`` on other data, as before a client goes back to a saved state. A collective.

    Overflows follow if the loss scale depends on them, and then the readings that follow the load, too.
    """
    other = scenario.but(seed=scenario.seed + 1, poison=())
    run_step(subject, other, step, rank)
    for _ in range(_overflows_astray(scenario, step)):
        run_step(subject, other.but(poison=((step, 0),)), step, rank)
    read_at(subject, scenario, step, 0)


def _overflows_astray(scenario: Scenario, step: int) -> int:
    """The overflows before a load into an engine that has trained: more than one if a saved overflow would hide it.

    A second one uses up hysteresis alone: an engine may end at an overflow that finds its scale at the minimum.
    """
    if scenario.dtype != "fp16" or scenario.loss_scale.static:
        return 0
    hides = scenario.loss_scale.hysteresis > 2 and bool(scenario.bad_steps & set(range(step)))
    return 2 if hides else 1


def save(subject: Subject, scenario: Scenario, directory: Path, step: int) -> None:
    """Save the state of a subject before a step, with a client's state if it keeps one. A collective."""
    if subject.keeps_client_state:
        subject.client_state = client_state(scenario, step)
    subject.save(directory)


def loaded(
    subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup, directory: Path, step: int
) -> Subject:
    """A new subject that has loaded the state of before a step. A collective.

    Its model starts from other values, so that a state that is not loaded shows.
    """
    other = model_for(subject_type, scenario.but(seed=scenario.seed + 1), dist.get_rank(group), loaded=True)
    following = wrap(other, subject_type, scenario, group)
    if scenario.loads_into == "trained":
        go_astray(following, scenario, step, dist.get_rank(group))
    following.load(directory)
    return following


def loaded_client_state(subject: Subject, scenario: Scenario, step: int) -> State:
    """The client's state that a load before a step gave back, by name; empty if the subject keeps none."""
    return given_back(client_state(scenario, step), subject.client_state) if subject.keeps_client_state else {}


def shared_directory(group: dist.ProcessGroup) -> Path:
    """A temporary directory that rank 0 makes and every rank knows."""
    names = [tempfile.mkdtemp(prefix="zerobench-") if dist.get_rank(group) == 0 else ""]
    dist.broadcast_object_list(names, group_src=0, group=group)
    return Path(names[0])


@contextmanager
def directory_of(group: dist.ProcessGroup) -> Iterator[Path]:
    """A temporary directory that all ranks see; it goes when all have left it."""
    directory = shared_directory(group)
    yield directory
    dist.barrier(group)
    if dist.get_rank(group) == 0:
        shutil.rmtree(directory, ignore_errors=True)


def model_for(subject_type: type[Subject], scenario: Scenario, rank: int, loaded: bool = False) -> nn.Module:
    """The Scenario's model as the subject takes it: on the device, or on the CPU if the subject moves it itself.

    ``loaded`` says whether the subject will load a state.
    """
    model = models.build(scenario.but(seed=scenario.seed + rank) if scenario.ranks_differ else scenario)
    if not scenario.freezes(loaded):
        model.requires_grad_(True)
    return model if subject_type.moves else model.to(scenario.device)


def run_step(
    subject: Subject,
    scenario: Scenario,
    index: int,
    rank: int,
    keep: Keep = frozenset(),
    mark: Callable[[str], None] = lambda phase: None,
    batches: Sequence[Batch] | None = None,
) -> Step:
    """Step ``index`` on ``rank``: its micro-steps and the update, with the Scenario's reads, then the readings.

    To interleave subjects or to meter a step, call this for each; a process waits for the device only at its end.
    ``mark`` is called after each micro-step's backward and after the optimizer. ``batches`` are those of
    :func:`draw_batches`, which a caller that times the step draws before it.

    Raises:
        ValueError: if a loss has a dimension.
        TypeError: if a tensor of the full values is not plain.
    """
    losses: list[Tensor] = []
    progress = counted(subject, " before the step")
    prepare(subject, scenario, index)
    reads = read_at(subject, scenario, index, 0)
    for micro_step, batch in enumerate(batches or draw_batches(scenario, index, rank)):
        seed_leaf(scenario, index, micro_step * scenario.world + rank)
        losses.append(_scalar(subject.micro_step(batch), subject.name))
        mark("backward")
        reads |= read_at(subject, scenario, index, micro_step + 1)
    edit_gradients(subject, scenario, index)
    gradients = to_cpu(subject.gradients()) if "gradients" in keep else {}
    outcome = subject.step()
    mark("optimizer")
    step = Step([loss.cpu() for loss in losses], outcome.norm, outcome.skipped, outcome.loss_scale, gradients)
    step.reads = reads | read_at(subject, scenario, index, -1)
    step.progress = progress | counted(subject) | in_force(subject, scenario)
    _record_states(step, subject, keep)
    return step


def _record_states(step: Step, subject: Subject, keep: Keep) -> None:
    """Read the states in ``keep`` after the update, in a fixed order; collectives."""
    if "parameters" in keep:
        step.parameters = to_cpu(subject.parameters())
    if "model_parameters" in keep:
        step.model_parameters = to_cpu(subject.model_parameters())
    if "optimizer_state" in keep:
        step.optimizer_state = {name: to_cpu(state) for name, state in subject.optimizer_state().items()}


def counted(subject: Subject, when: str = "") -> State:
    """The subject's counters, each named by itself and the moment."""
    return {f"{name}{when}": torch.tensor(count) for name, count in (subject.counters() or {}).items()}


def in_force(subject: Subject, scenario: Scenario) -> State:
    """The scheduled hyperparameters of the subject's parameter groups, which a client reads as the engine does."""
    return scheduled_values(scenario, subject.param_groups()) if scenario.schedules else {}


def prepare(subject: Subject, scenario: Scenario, step: int) -> None:
    """What the client does before ``step``: it sets hyperparameters, parameters, which of these train, and the number
    of micro-steps."""
    set_hyperparameters(subject, scenario, step)
    if scenario.shortens:
        subject.set_micro_steps(scenario.micro_steps_of(step))
    if step in scenario.edits:
        subject.set_parameters(changes.edited(scenario, step))
    changes.let_train(subject.first_block, scenario, step)


def edit_gradients(subject: Subject, scenario: Scenario, step: int) -> None:
    """The client's edit between the last backward of ``step`` and its update, if the Scenario has one."""
    if scenario.edits_gradients(step):
        subject.zero_gradients(changes.without_gradient(scenario, step))


def set_hyperparameters(subject: Subject, scenario: Scenario, step: int) -> None:
    """Set the hyperparameters that change in ``step``, as a client's schedules do.

    A resumed subject has the others from the state that it loaded.
    """
    changes = [changed_factors(scenario, step, group) for group in range(len(subject.initial_groups))]
    if any(changes):
        for group, initial, changed in zip(subject.param_groups(), subject.initial_groups, changes, strict=True):
            group.update(scaled(initial, changed))


def changed_factors(scenario: Scenario, step: int, group: int) -> dict[str, float]:
    """The factors of a group's hyperparameters that are others than in the step before, and not the engine's to set."""
    before, now = scenario.factors(step - 1, group), scenario.factors(step, group)
    kept = {"lr"} if scenario.engine_schedules else set()
    return {name: factor for name, factor in now.items() if factor != before[name] and name not in kept}


def run_steps(subject: Subject, scenario: Scenario, first: int, rank: int, batches: Sequence[Sequence[Batch]]) -> None:
    """Train a step on each element of ``batches``, from step ``first`` on, and read nothing between them."""
    for index, step in enumerate(batches, start=first):
        prepare(subject, scenario, index)
        for micro_step, batch in enumerate(step):
            seed_leaf(scenario, index, micro_step * scenario.world + rank)
            subject.micro_step(batch)
        edit_gradients(subject, scenario, index)
        subject.advance()


def draw_batches(scenario: Scenario, index: int, rank: int) -> list[Batch]:
    """The batches of step ``index`` on ``rank``, one for each micro-step, on the Scenario's device."""
    return [leaf(scenario, index, a * scenario.world + rank) for a in range(scenario.micro_steps_of(index))]


def read_at(subject: Subject, scenario: Scenario, step: int, at: int) -> State:
    """The values of the Scenario's reads at this moment, by :func:`labelled`'s names."""
    found: State = {}
    for each in scenario.reads:
        if (each.step, each.at) == (step, at):
            for time in range(each.times):
                found |= labelled(each, time, _read(subject, scenario, each))
    return found


def labelled(read: Read, time: int, values: State) -> State:
    """The values of one reading, each named by the reading and its own name."""
    when = "after the update" if read.at < 0 else f"after {read.at} micro-steps"
    which = f"{read.what.replace('_', ' ')} {when}{', again' * time}"
    return {f"{which}, {name}".removesuffix(", "): value for name, value in values.items()}


def _read(subject: Subject, scenario: Scenario, read: Read) -> State:
    if read.what == "evaluation":
        return {"": evaluation(subject, scenario)}
    if read.what == "optimizer_state":
        return flat({name: to_cpu(state) for name, state in subject.optimizer_state().items()})
    return to_cpu(getattr(subject, read.what)())


def flat(states: Mapping[str, State]) -> State:
    """Optimizer state by ``parameter.key``."""
    return {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}


def evaluation(subject: Subject, scenario: Scenario) -> Tensor:
    """The loss of the held-out batch, on the CPU."""
    with casting(scenario):
        return subject.evaluate(held_out(scenario)).detach().cpu()


def _scalar(loss: Tensor, name: str) -> Tensor:
    if loss.dim():
        raise ValueError(
            f"micro_step of {name} returned a loss of shape {list(loss.shape)}; expected a 0-dimensional tensor, the "
            "mean loss of the leaf"
        )
    return loss


def to_cpu(state: Mapping[str, Tensor]) -> State:
    """Copies on the CPU that nothing else writes to.

    Raises:
        TypeError: if a tensor wraps others, such as a shard of a DTensor.
    """
    for name, tensor in state.items():
        if is_traceable_wrapper_subclass(tensor):
            expected = "expected a plain tensor of full values, as full_tensor() of a DTensor"
            raise TypeError(f"{name} is a {type(tensor).__name__}; {expected}")
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
