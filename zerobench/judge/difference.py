"""Difference: the first wrong bit of a recording, and a description of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zerobench.judge import hints
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import State

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """One wrong value; ``str()`` is the message."""

    subject: str
    against: str
    scenario: Scenario
    rank: int
    step: int | None  # None: after the last step
    part: Part
    name: str
    got: str
    expected: str
    index: tuple[int, ...] = ()
    differing: int = 0  # elements
    size: int = 0
    largest: float = 0.0  # absolute difference
    allowed: str = ""  # by a bound
    hints: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Step, part, name and index."""
        when = "after the last step" if self.step is None else f"step {self.step}"
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return ", ".join(filter(None, [when, self.part.replace("_", " "), self.name])) + at

    def __str__(self) -> str:
        count = f"{self.differing} of {self.size} elements, by {self.largest:.3g} at most" if self.size else ""
        lines = {
            "where": self.where,
            "rank": str(self.rank),
            "got": self.got,
            "expected": self.expected,
            "allowed": self.allowed,
            "differ": count,
            "hint": "\n            ".join(self.hints),
        }
        shown = [f"  {name:9} {text}" for name, text in lines.items() if text]
        return "\n".join([f"{self.subject} differs from {self.against}", *shown])


def first_difference(
    got: Trajectory, expected: Trajectory, parts: Collection[Part] = ALL_PARTS, beyond: float = 0.0
) -> Difference | None:
    """The first bit of ``parts`` in which one rank's recording is not ``expected``, or None.

    Steps are compared in order, in each the parts in the order of :data:`ALL_PARTS`; NaN equals NaN, -0 is not +0.
    ``expected`` is the canonical trainer's recording (leaf a * N + r is micro-step a on rank r), or one rank's
    recording of another subject or Scenario. If only one of them recorded a value, it differs, except a norm, and
    progress that it has in no step: not every subject has them. An optimizer state that one left out counts as zeros.
    With ``beyond``, a tensor passes if its difference is at most that share of its 2-norm.
    """
    agreed: Agreed = {}
    for step in range(max(len(got.steps), len(expected.steps))):
        before, agreed = agreed, {}
        for part in ALL_PARTS[:-1]:
            if part in parts:
                comparison = _Comparison(got, expected, part, step, beyond, bool(agreed.get("gradients")))
                found = comparison.first()
                if found is not None:
                    return replace(found, hints=(*found.hints, *_follow(found, got, agreed, before)))
                agreed[part] = comparison.recorded()
    if "evaluation" not in parts or not _comparable(got, expected):
        return None
    return _Comparison(got, expected, "evaluation", None, beyond).first()


def _comparable(got: Trajectory, expected: Trajectory) -> bool:
    """Whether evaluations can be compared: every rank evaluates with its own buffers; the oracle has every rank's."""
    return got.rank == expected.rank or (expected.evaluation is not None and expected.evaluation.dim() == 1)


def value_at(place: Difference, trajectory: Trajectory) -> Tensor | None:
    """The value that a recording has at the place of a difference; None if it has none there."""
    return _values_of(trajectory, place.part, place.step, trajectory).get(place.name)


def same_bits(got: Tensor, expected: Tensor) -> bool:
    """Equal in shape, dtype and every bit; NaN equals NaN."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    integer = _INTEGERS[got.element_size()]
    return torch.equal(got.view(integer), expected.view(integer)) or not bool(_differs(got, expected).any())


def is_optimizer_state(reading: str) -> bool:
    """Whether the name of a value of a reading is that of an optimizer state; see zerobench.driver.labelled."""
    return reading.startswith("optimizer state ")


def or_zeros(state: Tensor | None, like: Tensor) -> Tensor:
    """An optimizer state; zeros if the engine left it out, because it has none before a parameter's first update."""
    return torch.zeros_like(like) if state is None else state


def kind_of_progress(name: str) -> str:
    """What a value of the progress is of: a counter at any moment, or a hyperparameter of any group."""
    return name.removesuffix(" before the step").partition(" of group ")[0]


def kinds_of_progress(trajectory: Trajectory) -> set[str]:
    """Those that a subject has in any step: the client's state, which loads alone give back, is not among them."""
    found = {kind_of_progress(name) for step in trajectory.steps for name in step.progress}
    return {kind for kind in found if not kind.startswith("client_state")}


def _differs(got: Tensor, expected: Tensor) -> Tensor:
    """The elements of two tensors of one shape and dtype that differ in a bit, two NaNs aside: bool."""
    integer = _INTEGERS[got.element_size()]
    return (got.view(integer) != expected.view(integer)) & ~(got.isnan() & expected.isnan())


#: The names that both recordings have in each part, which is equal in both.
Agreed = dict[Part, frozenset[str]]

#: The other cause, if a norm that differs is that of the sums of equal gradients.
_HIDDEN = ", or a last bit of a sum, which the gradient has lost in its division"

#: A part that is computed from another, and the cause if only it differs.
_FOLLOWS: dict[Part, tuple[Part, str]] = {
    "norm": ("gradients", "the gradients agree: the norm's own sum is at fault"),
    "skipped": ("norm", "the norm agrees: the decision on overflow is at fault"),
    "parameters": (
        "optimizer_state",
        "optimizer state agrees: the end of the update is at fault, or its step count",
    ),
    "model_parameters": ("parameters", "its fp32 value agrees: its rounding or its way back is at fault"),
}


def _follow(found: Difference, got: Trajectory, agreed: Agreed, before: Agreed) -> Iterator[str]:
    """The recorded values that agree, but would differ if the fault were earlier; ``before`` are those of the step
    before."""
    source, text = _FOLLOWS.get(found.part, (found.part, ""))
    names = agreed.get(source, frozenset())
    here = [] if found.step is None else got.steps[found.step : found.step + 1]
    if found.part == "parameters" and any(step.skipped for step in here):
        return
    if any(found.name in ("", name, name.rpartition(".")[0]) for name in names):
        yield text + (_HIDDEN if found.part == "norm" and _may_hide(found, here) else "")
    if found.part == "losses" and found.step and before.get("parameters"):
        before_it = f"the parameters of step {found.step - 1} agree"
        yield f"{before_it}: this forward used others (stale, not gathered) or other data"


def _may_hide(found: Difference, steps: Sequence[Step]) -> bool:
    """Whether gradients may agree although their sums do not: a quotient by no power of two can be that of two sums."""
    leaves = found.scenario.leaves_of(found.step or 0)
    most = max(abs(step.norm or 0.0) for step in steps) * torch.finfo(torch.float32).eps
    return leaves & (leaves - 1) > 0 and found.largest <= most


@dataclass(frozen=True)
class _Comparison:
    """One part of one step (None: after the last) of two recordings."""

    got: Trajectory
    expected: Trajectory
    part: Part
    step: int | None
    beyond: float
    gradients_agree: bool = False  # of this step, and both recordings have them

    def first(self) -> Difference | None:
        got, expected = self._both()
        if self.part == "norm" and not (got and expected):
            return None
        if self.part == "progress":
            got, expected = self._counted(got, expected)
        names = [name for name in expected | got if not _agree(got.get(name), expected.get(name), self.beyond)]
        if not names:
            return None
        shapes = {name: value.shape for name, value in (got | expected).items()}
        found = self._difference(names[0], got.get(names[0]), expected.get(names[0]))
        active = _values_of(self.expected, "gradients", self.step, self.got)
        of_names = hints.of_names(self.part, names, shapes, self.got.scenario, active)
        return replace(found, hints=(*found.hints, *of_names))

    def _counted(self, got: State, expected: State) -> tuple[State, State]:
        """What both have in this step, or in any: a subject has the counters that its engine has, and in each step."""
        kinds = kinds_of_progress(self.got) & kinds_of_progress(self.expected)
        names = {name for name in got | expected if kind_of_progress(name) in kinds} | (got.keys() & expected.keys())
        found, right = ({name: each for name, each in both.items() if name in names} for both in (got, expected))
        return found, right

    def recorded(self) -> frozenset[str]:
        """The names of the values that both recordings have."""
        got, expected = self._both()
        return frozenset(got.keys() & expected.keys())

    def _both(self) -> tuple[State, State]:
        got, expected = self._values(self.got, self.step), self._values(self.expected, self.step)
        return self._with_states_of(got, expected), self._with_states_of(expected, got)

    def _with_states_of(self, values: State, other: State) -> State:
        """The values, and zeros for each optimizer state that only the other recording has."""
        names = [name for name in other if self.part == "optimizer_state" or is_optimizer_state(name)]
        return values | {name: or_zeros(values.get(name), other[name]) for name in names}

    def _values(self, trajectory: Trajectory, step: int | None) -> State:
        return _values_of(trajectory, self.part, step, self.got)

    def _difference(self, name: str, got: Tensor | None, expected: Tensor | None) -> Difference:
        trajectory = self.got
        found = Difference(
            trajectory.subject,
            _against(trajectory, self.expected),
            trajectory.scenario,
            trajectory.rank,
            self.step,
            self.part,
            name,
            *(describe(got), describe(expected)),
        )
        if got is None or expected is None or got.shape != expected.shape or got.dtype != expected.dtype:
            return found
        differs = _differs(got, expected)
        return replace(located(found, got, expected, differs), hints=tuple(self._hints(name, got, expected, differs)))

    def _hints(self, name: str, got: Tensor, expected: Tensor, differs: Tensor) -> Iterator[str]:
        if self.step is None:
            return iter(())
        before = self._values(self.expected, self.step - 1).get(name)
        scales = {each.steps[self.step].loss_scale for each in (self.got, self.expected)}
        loss_scale = scales.pop() if len(scales) == 1 else None
        summed = self._summed() if self.part == "norm" else 0
        pair = hints.Pair(self.got.scenario, self.part, got, expected, differs, loss_scale, before, summed)
        return hints.of_pair(pair)

    def _summed(self) -> int:
        """The elements of the gradients, if they agree."""
        gradients = _values_of(self.got, "gradients", self.step, self.got) if self.gradients_agree else {}
        return sum(each.numel() for each in gradients.values())


def _against(got: Trajectory, expected: Trajectory) -> str:
    """The name of the other run."""
    if expected.subject != got.subject:
        return expected.subject
    if expected.scenario != got.scenario:
        return "itself in another Scenario"
    return f"itself on rank {expected.rank}" if expected.rank != got.rank else "itself"


def located(found: Difference, got: Tensor, expected: Tensor, differs: Tensor) -> Difference:
    """Add the first differing element, the number of such elements and the largest difference."""
    index = tuple(differs.nonzero()[0].tolist())
    return replace(
        found,
        index=index,
        got=describe(got[index]),
        expected=describe(expected[index]),
        differing=int(differs.sum()),
        size=differs.numel(),
        largest=_apart(got[differs], expected[differs]),
    )


def _apart(got: Tensor, expected: Tensor) -> float:
    """The largest difference; integers are subtracted as integers, because fp64 rounds those above 2^53."""
    if not got.is_floating_point():
        return float(max(abs(one - other) for one, other in zip(got.tolist(), expected.tolist(), strict=True)))
    return float((got.double() - expected.double()).abs().nan_to_num(torch.inf, torch.inf).max())


def describe(value: Tensor | None) -> str:
    """A scalar with its bits, a tensor by dtype and shape."""
    if value is None:
        return "nothing"
    if value.dim():
        return f"{value.dtype} {list(value.shape)}"
    item = value.item()
    return f"{item!r} ({item.hex()}, {value.dtype})" if isinstance(item, float) else repr(item)


def _agree(got: Tensor | None, expected: Tensor | None, beyond: float) -> bool:
    if got is None or expected is None or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if same_bits(got, expected):
        return True
    right = expected.double()
    return beyond > 0 and bool((got.double() - right).norm() <= beyond * right.norm())


def _values_of(trajectory: Trajectory, part: Part, step: int | None, compared: Trajectory) -> State:
    """A part's values by name; empty if there was no such step (None: after the last)."""
    if step is None:
        return {} if trajectory.evaluation is None else {"": _own(trajectory.evaluation, compared.rank)}
    return values_in(part, trajectory.steps[step], step, compared) if 0 <= step < len(trajectory.steps) else {}


def values_in(part: Part, step: Step, index: int, compared: Trajectory) -> State:
    """A part of a step as tensors by name; of all leaves' losses, those of the compared rank."""
    match part:
        case "losses":
            return {f"micro-step {a}": loss for a, loss in enumerate(_own_losses(step, index, compared))}
        case "norm":
            return {} if step.norm is None else {"": torch.tensor(step.norm, dtype=torch.float64)}
        case "skipped":
            return {"": torch.tensor(step.skipped)}
        case "loss_scale":
            return {"": torch.tensor(step.loss_scale, dtype=torch.float64)}
        case "optimizer_state":
            return {f"{name}.{key}": t for name, state in step.optimizer_state.items() for key, t in state.items()}
        case "reads":
            return {
                name: _own(t, compared.rank) if name.startswith("evaluation") else t for name, t in step.reads.items()
            }
    values: State = getattr(step, part)
    return values


def _own(evaluation: Tensor, rank: int) -> Tensor:
    """A rank's evaluation, from the oracle's [world] or as the rank recorded it."""
    return evaluation[rank] if evaluation.dim() == 1 else evaluation


def _own_losses(step: Step, index: int, compared: Trajectory) -> list[Tensor]:
    scenario = compared.scenario
    every_leaf = scenario.world > 1 and len(step.losses) == scenario.leaves_of(index)
    return step.losses[compared.rank :: scenario.world] if every_leaf else step.losses
