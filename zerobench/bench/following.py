"""Following: does each step of a run follow from the state before it?

The oracle computes each step from the engine's own recorded values, so that a right engine's roundings do not add up,
and every engine can be held to bounds of a single step:

1. the counters that it has in any step are those of the steps before it, and a load before it gave the client's state
   back; the losses are the model's on the engine's own weights, bit for bit;
2. the gradients are within the rounding bound of the sum of the leaves' gradients (zerobench/judge/bounds.py);
3. the step is skipped if a leaf was bad, the leaf's own gradient overflows or the engine's is not finite, and only if
   a sum may overflow; then nothing moves, bit for bit;
4. the norm is that of the engine's own gradients, and parameters and states are those of the rule
   (zerobench/bench/update_rule.py), within their rounding bounds;
5. the model's parameters are the fp32 values rounded, bit for bit;
6. a reading has the values of its moment, and an evaluation the model's loss on the engine's own weights, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zerobench.bench.update_rule import Before, updated
from zerobench.driver import flat, labelled, to_cpu
from zerobench.judge.bounds import excess, gamma, gradient_bound, is_used_once
from zerobench.judge.difference import (
    Difference,
    describe,
    is_optimizer_state,
    kind_of_progress,
    kinds_of_progress,
    located,
    or_zeros,
    same_bits,
)
from zerobench.judge.parts import Part
from zerobench.model_specs import Odd
from zerobench.oracles import loading
from zerobench.oracles.canonical_trainer import Trainer, arithmetic
from zerobench.oracles.norms import norm_of
from zerobench.oracles.rules import hyperparameters, state_keys
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Optimizer, Read, scaled
from zerobench.subject import Policies, State
from zerobench.workload.changes import without_gradient
from zerobench.workload.data import DTYPES, held_out_in
from zerobench.workload.groups import group_of, specs


def first_step_that_does_not_follow(
    got: Sequence[Trajectory], policies: Policies, before: Sequence[Step] = ()
) -> Difference | None:
    """The first value that does not follow from the step before; the recordings have every state of every step.

    One rank's is held to it, in each Scenario another: the ranks agree (suites/equivalence/test_every_engine.py).
    ``before`` are the first steps of the run if another one made them, and saved; they are right.
    """
    scenario = got[0].scenario
    return next(_Follower(got[scenario.seed % scenario.world], policies).differences(before), None)


@dataclass(frozen=True)
class _Expected:
    """The oracle's values of one step."""

    losses: list[Tensor]
    gradients: State
    bounds: State
    must_skip: bool
    may_skip: bool


class _Follower:
    def __init__(self, got: Trajectory, policies: Policies) -> None:
        self.got, self.policies, self.scenario = got, policies, got.scenario
        watched = got.scenario.but(reads=tuple(read for read in got.scenario.reads if self._on_the_way(read)))
        self.trainer = Trainer(watched, arithmetic(watched), magnitudes=True, policies=policies)
        self.masters: State = {name: p.detach().clone() for name, p in self.trainer.masters.items()}
        self.states = self.trainer.states()
        self.counts = dict.fromkeys(self.masters, 0)
        self.has_norm = any(step.norm is not None for step in got.steps if not step.skipped)
        self.counted = kinds_of_progress(got)

    def differences(self, before: Sequence[Step]) -> Iterator[Difference]:
        for index, step in enumerate(before):
            self.trainer.progress.begin(index)
            self._take(index, step)
        for index, step in enumerate(self.got.steps, len(before)):
            loads = index in self.scenario.resumes or 0 < index == len(before)
            if loads:
                self._load(index)
            self.masters |= self.trainer.prepare(index)
            self.trainer.progress.begin(index)
            counters = self.trainer.progress.counters(" before the step") | (self.trainer.given_back if loads else {})
            yield from self._progress(index, step, counters)
            scale = self.trainer.scaler.scale
            if step.loss_scale != scale:
                yield self._found(index, "loss_scale", "", torch.tensor(step.loss_scale), torch.tensor(scale))
            within = self._readings(index, step)
            expected = self._expected(index)
            within |= {name: values[self.got.rank] for name, values in self.trainer.reads.items()}
            yield from self._backward(index, step, expected)
            yield from self._still(index, step) if step.skipped else self._moved(index, step)
            yield from self._model(index, step)
            self._take(index, step)
            yield from self._reads(index, step, within | self._readings(index, step, after=True))
            after = self.trainer.progress.counters() | self.trainer.progress.in_force()
            yield from self._progress(index, step, after)

    def _load(self, index: int) -> None:
        """Go on from the states that the engine has loaded."""
        loading.load(self.trainer, index)
        if self.scenario.loads_part:
            kept = loading.loaded_masters(self.trainer, self.masters)
            trained = self.trainer.masters
            self.masters = {name: kept[name] if name in kept else p.detach().clone() for name, p in trained.items()}
            self.states = self.trainer.states()
            self.counts = dict.fromkeys(self.masters, 0)

    def _progress(self, index: int, step: Step, right: State) -> Iterator[Difference]:
        """What an engine has in any step it has in each, and a hyperparameter of one group it has of every group."""
        for name, value in right.items():
            if name in step.progress or kind_of_progress(name) in self.counted:
                yield from self._same(index, "progress", name, step.progress.get(name), value)

    def _expected(self, index: int) -> _Expected:
        """Train the step's leaves on the engine's weights, without the update."""
        trainer, scenario = self.trainer, self.scenario
        trainer.begin()
        divisor = scenario.leaves * trainer.scaler.scale
        fold = trainer.sum_by_micro_step if scenario.reduction == "micro_step" else trainer.sum_at_boundary
        accumulated = fold(index)
        trainer.read(index, scenario.micro_steps_of(index))
        trainer.edit(accumulated, index)
        largest = max((float(m.max()) for m in trainer.leaves.magnitudes.values() if m.numel()), default=0.0)
        magnitudes, lost = (
            {name: m / divisor for name, m in sums.items()} for sums in (trainer.leaves.magnitudes, trainer.leaves.lost)
        )
        poisoned = index in scenario.bad_steps or self._overflows(index)
        return _Expected(
            trainer.leaves.losses,
            trainer.scaled(accumulated, 1.0 / divisor),
            gradient_bound(scenario, magnitudes, lost),
            must_skip=poisoned,
            may_skip=poisoned or not largest < self._limit(),
        )

    def _overflows(self, index: int) -> bool:
        """Whether a leaf's gradient overflows in fp16, which has the same bits in every engine: no loss is divided, the
        forward uses the parameter once, and the client does not zero it."""
        if self.scenario.dtype != "fp16" or self.scenario.accumulation > 1:
            return False
        zeroed = without_gradient(self.scenario, index) if self.scenario.edits_gradients(index) else []
        own = (
            m
            for name, m in self.trainer.leaves.magnitudes.items()
            if name not in zeroed and is_used_once(self.scenario, name)
        )
        return not all(bool(m.isfinite().all()) for m in own)

    def _limit(self) -> float:
        """The least sum that may overflow on its way."""
        return min(torch.finfo(dtype).max for dtype in vars(self.trainer.dtypes).values())

    def _backward(self, index: int, step: Step, expected: _Expected) -> Iterator[Difference]:
        world, rank = self.scenario.world, self.got.rank
        for micro_step, (loss, right) in enumerate(zip(step.losses, expected.losses[rank::world], strict=True)):
            yield from self._same(index, "losses", f"micro-step {micro_step}", loss, right.cpu())
        must_skip = expected.must_skip or not all(bool(g.isfinite().all()) for g in step.gradients.values())
        if (step.skipped and not expected.may_skip) or (not step.skipped and must_skip):
            yield self._found(index, "skipped", "", torch.tensor(step.skipped), torch.tensor(not step.skipped))
        if not (step.skipped and expected.may_skip):
            yield from self._gradients(index, step, expected)

    def _gradients(self, index: int, step: Step, expected: _Expected) -> Iterator[Difference]:
        for name in self.masters:
            got, right = step.gradients.get(name), expected.gradients.get(name)
            if right is None and self.policies.inactive_gradient == "zero":
                got = torch.zeros_like(self.masters[name]) if got is None else got
                right = torch.zeros_like(self.masters[name])
            bound = expected.bounds.get(name, torch.zeros(()))
            if expected.may_skip and got is not None and right is not None:  # the oracle's own sum may overflow
                finite = right.isfinite()
                right, bound = torch.where(finite, right, got.to(right.dtype)), torch.where(finite, bound, torch.inf)
            yield from self._within(index, "gradients", name, got, right, bound)

    def _still(self, index: int, step: Step) -> Iterator[Difference]:
        for name, value in self.masters.items():
            yield from self._same(index, "parameters", name, step.parameters.get(name), value)
            for key, got in self._states_of(step, name).items():
                yield from self._same(index, "optimizer_state", f"{name}.{key}", got, self.states[name][key])

    def _moved(self, index: int, step: Step) -> Iterator[Difference]:
        doubt = self._doubt_of_norm(step)
        own = norm_of(step.gradients.values(), self.scenario.norm_type)
        if step.norm is not None:
            norm, right = torch.tensor(step.norm).double(), torch.tensor(own).double()
            yield from self._within(index, "norm", "", norm, right, doubt * right)
            own, doubt = step.norm, 0.0
        elif self.has_norm:
            yield self._found(index, "norm", "", None, torch.tensor(own))
        clip = self.scenario.clip
        factor = min(1.0, clip / (own + 1e-6)) if clip else 1.0
        for name in self.masters:
            yield from self._parameter(index, step, name, factor, doubt if clip else 0.0)

    def _doubt_of_norm(self, step: Step) -> float:
        """The relative error of a norm in fp32. The infinity norm is the size of one element, which only a loss scale
        that is no power of two rounds."""
        if self.scenario.norm_type == "inf":
            return 0.0 if math.frexp(step.loss_scale)[0] == 0.5 else gamma(2, torch.float32)
        return gamma(sum(g.numel() for g in step.gradients.values()) + 8, torch.float32)

    def _parameter(self, index: int, step: Step, name: str, factor: float, doubt: float) -> Iterator[Difference]:
        gradient = self._gradient(step, name)
        before = self.masters[name]
        got: dict[str, Tensor | None] = {"": step.parameters.get(name), **self._states_of(step, name)}
        if gradient is None:
            for key, right in ({"": before} | self.states[name]).items():
                yield from self._same(index, *_place(name, key), got[key], right)
            return
        given = Before.of(before, self.states[name], gradient.double() * factor, self.counts[name] + 1, doubt)
        update = updated(self._group(name, before.ndim), given)
        for key in sorted(update.values, reverse=True):  # the states before the parameter
            yield from self._within(index, *_place(name, key), got[key], update.values[key], update.bounds[key])

    def _states_of(self, step: Step, name: str) -> State:
        """A parameter's states after a step."""
        found = step.optimizer_state.get(name, {})
        return {key: or_zeros(found.get(key), self.masters[name]) for key in state_keys(self.scenario.optimizer)}

    def _group(self, name: str, dimensions: int) -> Optimizer:
        """The hyperparameters of a parameter's group, times the factors in force."""
        number = group_of(self.scenario.optimizer, name, dimensions)
        group = specs(self.scenario.optimizer)[number]
        return replace(group, **scaled(hyperparameters(group), self.trainer.progress.factors[number]))

    def _gradient(self, step: Step, name: str) -> Tensor | None:
        found = step.gradients.get(name)
        return self.trainer.inactive(self.masters[name]) if found is None else found

    def _model(self, index: int, step: Step) -> Iterator[Difference]:
        dtype = DTYPES[self.scenario.dtype]
        for name, p in self.trainer.leaves.model.named_parameters():
            right = step.parameters[name].to(dtype) if name in step.parameters else p.detach()
            yield from self._same(index, "model_parameters", name, step.model_parameters.get(name), right)

    def _readings(self, index: int, step: Step, *, after: bool = False) -> State:
        """The values of the readings in a step, or ``after`` it, on the engine's own weights, by their names.

        The trainer makes an evaluation between micro-steps, whose buffers are on their way, as it trains the leaves. A
        reading after more micro-steps than the step has does not take place.
        """
        found: State = {}
        for read in self.scenario.reads:
            takes_place = read.step == index and read.at <= self.scenario.micro_steps_of(index)
            if takes_place and (read.at < 0) == after and not self._moves(read):
                for time in range(read.times):
                    found |= labelled(read, time, self._value(read, index, step))
        return found

    def _moves(self, read: Read) -> bool:
        """Whether it is an evaluation with buffers that are on their way."""
        return read.what == "evaluation" and read.at > 0 and bool(self.trainer.leaves.buffers[0])

    def _on_the_way(self, read: Read) -> bool:
        """Whether it may be one that the trainer can make. If a forward begins with the buffers of rank 0, an engine
        may leave that out in some forwards between the micro-steps."""
        model = self.scenario.model
        buffers = isinstance(model, Odd) and (model.buffers or model.has_rare_parts)
        within = read.what == "evaluation" and read.at > 0
        return buffers and within and self.policies.buffers_with not in self.scenario.settings

    def _value(self, read: Read, index: int, step: Step) -> State:
        if read.what == "evaluation":
            return {"": self.trainer.leaves.evaluate(held_out_in(self.scenario, index))[self.got.rank]}
        if read.what == "gradients":  # the recorded ones are those of after an edit
            return {} if self.scenario.edits_gradients(index) else step.gradients
        if read.what == "parameters":
            return self.masters
        if read.what == "optimizer_state":
            return flat(self.states)
        return to_cpu(dict(self.trainer.leaves.model.named_parameters()))

    def _reads(self, index: int, step: Step, right: State) -> Iterator[Difference]:
        for name, value in right.items():
            got = step.reads.get(name)
            got = or_zeros(got, value) if is_optimizer_state(name) else got
            yield from self._same(index, "reads", name, got, value)

    def _take(self, index: int, step: Step) -> None:
        """Go on from the engine's values."""
        for name in self.masters:
            applied = not step.skipped and self._gradient(step, name) is not None
            self.counts[name] += applied or (step.skipped and self.policies.counts_skipped_steps)
        self.trainer.progress.end(index, step.skipped)
        self.masters = dict(step.parameters)
        self.states = {name: self._states_of(step, name) for name in self.masters}
        self.trainer.scaler.update(step.skipped)
        for name, p in self.trainer.leaves.model.named_parameters():
            p.data.copy_(step.model_parameters[name])

    def _same(self, index: int, part: Part, name: str, got: Tensor | None, right: Tensor) -> Iterator[Difference]:
        if got is None or not same_bits(got, right):
            yield self._found(index, part, name, got, right)

    def _within(
        self, index: int, part: Part, name: str, got: Tensor | None, right: Tensor | None, bound: Tensor
    ) -> Iterator[Difference]:
        if got is None and right is None:
            return
        if got is None or right is None or got.shape != right.shape:
            yield self._found(index, part, name, got, right)
            return
        outside = excess(got, right, bound)
        if outside.any():
            found = located(self._place_of(index, part, name), got, right, outside)
            yield replace(found, allowed=f"{float(bound.expand(got.shape)[found.index]):.3g}")

    def _found(self, index: int, part: Part, name: str, got: Tensor | None, right: Tensor | None) -> Difference:
        found = self._place_of(index, part, name)
        if got is not None and right is not None and got.shape == right.shape and got.dtype == right.dtype:
            equal = (got == right) & (got.signbit() == right.signbit())
            return located(found, got, right, ~(equal | (got.isnan() & right.isnan())))
        return replace(found, got=describe(got), expected=describe(right))

    def _place_of(self, index: int, part: Part, name: str) -> Difference:
        which = self.got.subject, "its own step before", self.scenario, self.got.rank
        return Difference(*which, index, part, name, got="", expected="")


def _place(name: str, key: str) -> tuple[Part, str]:
    return ("optimizer_state", f"{name}.{key}") if key else ("parameters", name)
