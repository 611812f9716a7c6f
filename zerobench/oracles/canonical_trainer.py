"""The canonical trainer: the numerical contract as a program of one process, with nothing sharded.

A step has L = N * A leaves; leaf ``a * N + r`` is micro-step a on rank r (docs/reference/contract.md has the reasons).
A step that the client ends early has the first ones only, and L stays what it is:

1. *Weights.* The model's floating-point parameters are rounded to the Scenario's dtype; every trainable one has an fp32
   master, which is the original value. Buffers keep their dtype.
2. *Leaves*, in order. The leaf's random state and the rank's own buffers are set; forward; backward of
   ``loss * loss_scale``. The contribution is the gradient rounded to the communication dtype. If a parameter receives
   no gradient on a leaf, the leaf contributes nothing to it.
3. *Sum.* Accumulators start at +0 and add in fp32, one contribution after the other, element by element.
   ``micro_step``: after a micro-step's contributions, in the order of ranks, the accumulator is rounded to its dtype.
   ``boundary``: each rank adds its own unrounded gradients in the same way; these sums are rounded to the
   communication dtype and added in the order of ranks, and the result is rounded to the accumulator's dtype.
4. *Norm.* Every trainable parameter's accumulator (zeros if it received nothing), in the order of
   ``named_parameters`` and each in its memory order, is padded with zeros to whole chunks. A chunk's squares are added
   in fp64 by halving: the second half is added to the first until one is left. The sums of all chunks, padded with
   zeros to a power of two, are added likewise. The norm is the root divided by ``L * loss_scale``.
5. *Overflow.* If that sum is not finite, the step changes nothing, in every precision; the loss scaler is told.
6. *Scaling.* With clipping, coefficient = min(1, clip / (norm + 1e-6)); otherwise 1. The gradient is the accumulator,
   as fp32, times coefficient / (L * loss_scale), which is computed in fp64 and rounded once to fp32.
7. *Update.* torch.optim's single-tensor rule on the masters, with a square root rounded as in IEEE 754, or the paper's
   Lion. A scheduled hyperparameter of a group is its initial value times the step's factor; an engine's scheduler
   does not count skipped steps. If a parameter received no gradient on any leaf, its gradient is None.
8. The model's parameters become the masters rounded to nearest even.

An engine may declare other policies (:class:`~zerobench.subject.Policies`): the masters are rounded like the weights,
the gradient in point 7 is zeros instead of None, or a skipped step advances the optimizer's step counts.

The ranks' forward and backward depend on their number of threads and their device; run this with the same. Points 3
to 7 are computed on the CPU on every device: there torch has the contract's roundings. On CUDA it fuses the products of
``addcmul`` and ``addcdiv`` with their sums and multiplies by a divisor's reciprocal. The float64 run, which defines no
bits, computes them on the device of its forwards, where a large model takes a fraction of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from zerobench.driver import Keep, flat, labelled, to_cpu
from zerobench.errors import UsageError
from zerobench.oracles import loading, norms
from zerobench.oracles.leaves import Leaves, initial_model
from zerobench.oracles.optimizer import ExactUpdate, build_optimizer, read_state
from zerobench.oracles.progress import Progress
from zerobench.oracles.scaler import scaler_of
from zerobench.recording import Step, Trajectory
from zerobench.scenario import LossScale, Read, Scenario, scaled
from zerobench.subject import CONTRACT, Policies, State
from zerobench.workload.changes import edited, let_train, resting, without_gradient
from zerobench.workload.data import DTYPES, held_out, held_out_in


@dataclass
class OracleStep(Step):
    """A step with the losses of all leaves in order and, if requested, the sums' conditions."""

    #: For every active parameter the sum over leaves of abs(contribution), scaled like the gradient, in fp64; see
    #: :class:`Contributions`.
    magnitudes: State = field(default_factory=dict)
    #: In fp16 with more than one micro-step: the same sum of what the contributions change if the loss is divided by
    #: the micro-steps before the backward, as many engines do, because more values underflow.
    lost: State = field(default_factory=dict)


def canonical(
    scenario: Scenario,
    keep: Keep = frozenset(),
    *,
    last: Keep = frozenset(),
    magnitudes: bool = False,
    policies: Policies = CONTRACT,
) -> Trajectory:
    """Train by the contract; every step is an :class:`OracleStep`. An evaluation is every rank's: [world].

    ``keep`` is recorded of every step, ``last`` of the last one as well.

    Raises:
        UsageError: if a chunk is not a power of two, or if there is no such model or data.
    """
    return Trainer(scenario, arithmetic(scenario), keep, last, magnitudes, policies).train(())


def float64(
    scenario: Scenario,
    keep: Keep = frozenset(),
    *,
    last: Keep = frozenset(),
    skipped: Sequence[bool] = (),
    policies: Policies = CONTRACT,
) -> Trajectory:
    """The same leaves in float64 from the fp32 weights to the update, with no loss scale: the reference for errors.

    ``keep`` is recorded of every step, ``last`` of the last one as well. ``skipped`` are the decisions of the compared
    run, by step; without them a step is skipped if it is not finite.
    """
    return Trainer(scenario, Arithmetic(*[torch.float64] * 4), keep, last, False, policies).train(skipped)


@dataclass(frozen=True)
class Arithmetic:
    """The dtype at each place of a step."""

    model: torch.dtype
    wire: torch.dtype
    fold: torch.dtype  # sums, masters and update
    store: torch.dtype  # accumulators between micro-steps


def arithmetic(scenario: Scenario) -> Arithmetic:
    """The contract's dtypes in a Scenario."""
    return Arithmetic(
        model=DTYPES[scenario.dtype],
        wire=DTYPES[scenario.communication_dtype or scenario.dtype],
        fold=torch.float32,
        store=DTYPES[scenario.accumulator_dtype or "fp32"],
    )


class Trainer:
    """The program; :func:`canonical` and :func:`float64` run it."""

    def __init__(
        self,
        scenario: Scenario,
        dtypes: Arithmetic,
        keep: Keep = frozenset(),
        last: Keep = frozenset(),
        magnitudes: bool = False,
        policies: Policies = CONTRACT,
    ) -> None:
        if scenario.chunk < 1 or scenario.chunk & (scenario.chunk - 1):
            raise UsageError(f"the chunk must be a power of two, for its sum is halved; got {scenario.chunk}")
        self.scenario, self.dtypes, self.policies = scenario, dtypes, policies
        self.kept = [keep] * (scenario.steps - 1) + [keep | last]
        self.reference = dtypes.model == torch.float64
        self.device = torch.device(scenario.device if self.reference else "cpu")  # of points 3 to 7
        model = initial_model(scenario, policies)
        if self.reference:
            model.double()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: nn.Parameter(p.detach().to(self.device, dtypes.fold, copy=True)) for name, p in trained.items()
        }
        self.leaves = Leaves(scenario, model, dtypes.model, policies, magnitudes, self.device)
        self.resting = resting(model, scenario)
        self.optimizer = build_optimizer(scenario.optimizer, self.masters, foreach=False)
        self.initial_groups = [dict(group) for group in self.optimizer.param_groups]
        scales = scenario.dtype == "fp16" and not self.reference
        self.scaler = scaler_of(scenario.loss_scale if scales else LossScale(static=1.0))
        self.reads: State = {}
        self.progress = Progress(scenario)
        self.given_back: State = {}  # the client's state that a load before this step gave back

    def train(self, skipped: Sequence[bool]) -> Trajectory:
        decisions: list[bool | None] = [*skipped] or [None] * self.scenario.steps
        steps: list[Step] = [self.step(index, decisions[index]) for index in range(self.scenario.steps)]
        name = "float64" if self.reference else "canonical"
        evaluation = self.leaves.evaluate(held_out(self.scenario))
        return Trajectory(name, self.scenario, rank=0, steps=steps, evaluation=evaluation)

    def step(self, index: int, skip: bool | None) -> OracleStep:
        self.begin()
        if index in self.scenario.resumes:
            loading.load(self, index)
        self.prepare(index)
        self.progress.begin(index)
        before = self.progress.counters(" before the step") | self.given_back
        scale = self.scaler.scale
        divisor = self.scenario.leaves * scale
        fold = self.sum_by_micro_step if self.scenario.reduction == "micro_step" else self.sum_at_boundary
        accumulated = fold(index)
        self.read(index, self.scenario.micro_steps_of(index), self.scaled(accumulated, 1.0 / divisor))
        self.edit(accumulated, index)
        total = self.square_sum(accumulated)
        norm = self.norm(accumulated, total) / divisor
        gradients = self.scaled(accumulated, 1.0 / divisor)
        skipped = not math.isfinite(total) if skip is None else skip
        if not skipped:
            clip = self.scenario.clip
            coefficient = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
            self.update(self.scaled(accumulated, coefficient / divisor))
        elif self.policies.counts_skipped_steps:
            self.count_step()
        self.progress.end(index, skipped)
        self.scaler.update(skipped)
        self.read(index, -1)
        step = self.record(self.kept[index], gradients, divisor, norm, skipped, scale)
        step.progress = before | self.progress.counters() | self.progress.in_force()
        return step

    def begin(self) -> None:
        """Forget the step before."""
        self.leaves.begin()
        self.reads, self.given_back = {}, {}

    @torch.no_grad()
    def prepare(self, step: int) -> State:
        """The client's changes before the step; returns the values that it sets."""
        values = edited(self.scenario, step) if step in self.scenario.edits else {}
        for name, value in values.items():
            self.masters[name].copy_(value)
            self.leaves.working[name].copy_(self.masters[name])
        let_train(self.resting, self.scenario, step)
        return values

    def edit(self, accumulated: State, step: int) -> None:
        """The client's edit of the step's gradients."""
        if self.scenario.edits_gradients(step):
            for name in accumulated.keys() & without_gradient(self.scenario, step):
                accumulated[name] = torch.zeros_like(accumulated[name])

    def read(self, step: int, at: int, gradients: State | None = None) -> None:
        """Record the Scenario's reads at this moment."""
        for each in self.scenario.reads:
            if (each.step, each.at) == (step, at):
                values = self.value(each, gradients or {})
                for time in range(each.times):
                    self.reads |= labelled(each, time, values)

    def value(self, read: Read, gradients: State) -> State:
        match read.what:
            case "gradients":
                return to_cpu(gradients)
            case "parameters":
                return to_cpu(self.masters)
            case "model_parameters":
                return to_cpu(dict(self.leaves.model.named_parameters()))
            case "optimizer_state":
                return flat(self.states())
        return {"": self.leaves.evaluate(held_out_in(self.scenario, read.step))}

    def states(self) -> dict[str, State]:
        state = read_state(self.scenario.optimizer, self.optimizer.state, self.masters)
        return {name: to_cpu(tensors) for name, tensors in state.items()}

    def sum_by_micro_step(self, step: int) -> State:
        accumulated: State = {}
        for leaves in self.micro_steps(step):
            folded: State = {}
            for index in leaves:
                for name, g in self.leaves.gradient(step, index, self.scaler.scale).items():
                    before = folded[name] if name in folded else self.start(accumulated, name)
                    folded[name] = before + g.to(self.dtypes.wire).to(self.dtypes.fold)
            accumulated |= {name: total.to(self.dtypes.store) for name, total in folded.items()}
        return accumulated

    def sum_at_boundary(self, step: int) -> State:
        local: list[State] = [{} for _ in range(self.scenario.world)]
        for leaves in self.micro_steps(step):
            for rank, index in enumerate(leaves):
                for name, g in self.leaves.gradient(step, index, self.scaler.scale).items():
                    total = self.start(local[rank], name) + g.to(self.dtypes.fold)
                    local[rank][name] = total.to(self.dtypes.store)
        folded: State = {}
        for totals in local:
            for name, total in totals.items():
                folded[name] = self.start(folded, name) + total.to(self.dtypes.wire).to(self.dtypes.fold)
        return {name: total.to(self.dtypes.store) for name, total in folded.items()}

    def micro_steps(self, step: int) -> Iterator[range]:
        """The leaves of each micro-step, in the order of ranks; the reads before it are made."""
        world = self.scenario.world
        for a in range(self.scenario.micro_steps_of(step)):
            self.read(step, a)
            yield range(a * world, (a + 1) * world)

    def start(self, accumulated: State, name: str) -> Tensor:
        """The start of a sum: the accumulator, or +0, so that the sign of a zero sum is defined."""
        before = accumulated.get(name)
        return torch.zeros_like(self.masters[name]) if before is None else before.to(self.dtypes.fold)

    def square_sum(self, accumulated: State) -> float:
        """The sum of squares of all accumulators, in fp64, in the contract's order."""
        zeros = torch.zeros((), dtype=self.dtypes.store, device=self.device)
        pairs = ((accumulated.get(name, zeros), master) for name, master in self.masters.items())
        return norms.square_sum(pairs, self.scenario.chunk)

    def norm(self, accumulated: State, square_sum: float) -> float:
        """The norm of all accumulators, of the Scenario's type."""
        if self.scenario.norm_type == "2":
            return math.sqrt(square_sum)
        return norms.norm_of(accumulated.values(), self.scenario.norm_type)

    def scaled(self, accumulated: State, factor: float) -> State:
        """The accumulators times ``factor`` rounded once."""
        rounded = torch.tensor(factor, dtype=self.dtypes.fold)
        return {name: total.to(self.dtypes.fold) * rounded for name, total in accumulated.items()}

    @torch.no_grad()
    def update(self, gradients: State) -> None:
        in_force = zip(self.optimizer.param_groups, self.initial_groups, self.progress.factors, strict=True)
        for group, initial, factors in in_force:
            group.update(scaled(initial, factors))
        for name, master in self.masters.items():
            master.grad = gradients.get(name, self.inactive(master))
        with ExactUpdate():
            self.optimizer.step()
        for name, master in self.masters.items():
            self.leaves.working[name].copy_(master)

    def inactive(self, master: Tensor) -> Tensor | None:
        """The gradient of a parameter that received none."""
        return torch.zeros_like(master) if self.policies.inactive_gradient == "zero" else None

    def count_step(self) -> None:
        """Advance the optimizer's step counts without an update."""
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] += 1

    def record(
        self, keep: Keep, gradients: State, divisor: float, norm: float, skipped: bool, scale: float
    ) -> OracleStep:
        step = OracleStep([loss.cpu() for loss in self.leaves.losses], norm, skipped, scale, reads=self.reads)
        step.magnitudes = to_cpu({name: total / divisor for name, total in self.leaves.magnitudes.items()})
        step.lost = to_cpu({name: total / divisor for name, total in self.leaves.lost.items()})
        if "gradients" in keep:
            step.gradients = to_cpu(gradients)
        if "parameters" in keep:
            step.parameters = to_cpu(self.masters)
        if "model_parameters" in keep:
            step.model_parameters = to_cpu(dict(self.leaves.model.named_parameters()))
        if "optimizer_state" in keep:
            step.optimizer_state = self.states()
        return step
