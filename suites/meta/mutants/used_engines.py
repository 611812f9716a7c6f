"""Engines whose load is right in a new engine, and leaves something behind in one that has trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from torch import Tensor

from zerobench.engine.checkpoint import loading, matching
from zerobench.engine.checkpoint.matching import Choice, Want
from zerobench.subject import Batch, Outcome, State
from zerobench.suites.meta.mutants.loads import _Patched
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES, Points


class _LeavesValues(_Patched):
    """Leaves out some values of the checkpoint that the trained engine has, too."""

    points_at: ClassVar[Points | tuple[Points, ...]] = VALUES

    def left(self, want: Want, steps: Callable[[str], int]) -> bool:
        """Whether it is left out; ``steps`` gives the saved number of steps of a parameter."""
        raise NotImplementedError

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        def sabotaged(parts: Any, saved: Any, choice: Choice) -> list[Want]:
            counts = saved.contents.optimizer.steps
            found = matching.wants(parts, saved, choice)
            return [each for each in found if not self.left(each, lambda name: counts.get(name, 0))]

        return [mock.patch.object(loading, "wants", sabotaged) if self.engine.global_steps else nullcontext()]


class KeepsMomentsIfNoneWereSaved(_LeavesValues):
    """Leaves the moments of a parameter as they are if it had not been updated before the save, as torch may do."""

    def left(self, want: Want, steps: Callable[[str], int]) -> bool:
        kind, name = want.into.split(".", 1)
        return kind not in ("master", "frozen", "buffer") and not steps(name)


class KeepsBuffersInTraining(_LeavesValues):
    def left(self, want: Want, steps: Callable[[str], int]) -> bool:
        return want.into.startswith("buffer.")


class KeepsFirstMomentsInTraining(_LeavesValues):
    def left(self, want: Want, steps: Callable[[str], int]) -> bool:
        return want.into.split(".", 1)[0] in ("exp_avg", "momentum_buffer", "sum")


class LeavesWholeUnits(_Patched):
    """Goes on with the units that were whole before the load."""

    points_at = VALUES

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        unsharder = self.engine.unsharder
        return [] if unsharder is None else [mock.patch.object(unsharder, "reshard_all")]


class LeavesWhatWasRead(_Patched):
    """Goes on with the states that the client has read before the load."""

    points_at = VALUES

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        return [mock.patch.object(self.engine.read_cache, "clear")]


class EvaluatesFromBeforeTheLoad(Mutant):
    """Gives the last evaluation again until something is trained."""

    points_at = Points("reads")
    last: Tensor | None = None

    def micro_step(self, batch: Batch) -> Tensor:
        self.last = None
        return super().micro_step(batch)

    def set_parameters(self, values: State) -> None:
        self.last = None
        super().set_parameters(values)

    def evaluate(self, batch: Batch) -> Tensor:
        if self.last is None:
            self.last = super().evaluate(batch)
        return self.last

    def step(self) -> Outcome:
        self.last = None
        return super().step()


class _AfterTraining(Mutant):
    """Right in a new engine; one that has trained then changes its state."""

    points_at: ClassVar[Points | tuple[Points, ...]] = VALUES

    def before(self) -> Any:
        """A state of the trained engine that the change needs."""

    def after(self, before: Any) -> None:
        """Change the state."""
        raise NotImplementedError

    def load(self, directory: Path) -> None:
        trained, before = self.engine.global_steps > 0, self.before()
        super().load(directory)
        if trained:
            self.after(before)


class AddsSkippedSteps(_AfterTraining):
    points_at = Points("progress")

    def before(self) -> Any:
        return self.engine.skipped_steps

    def after(self, before: Any) -> None:
        self.engine.skipped_steps += before


class KeepsLaterStepCounts(_AfterTraining):
    """Takes the larger number of steps of each parameter."""

    def before(self) -> Any:
        return list(self.engine.stepper.steps)

    def after(self, before: Any) -> None:
        steps = self.engine.stepper.steps
        self.engine.stepper.steps = [max(own, loaded) for own, loaded in zip(before, steps, strict=True)]


class KeepsTheLowerLossScale(_AfterTraining):
    def before(self) -> Any:
        return self.engine.scaler.scale

    def after(self, before: Any) -> None:
        self.engine.scaler.scale = min(before, self.engine.scaler.scale)


class KeepsTheLaterOverflow(_AfterTraining):
    def before(self) -> Any:
        return self.engine.scaler._last_overflow

    def after(self, before: Any) -> None:
        self.engine.scaler._last_overflow = max(before, self.engine.scaler._last_overflow)


class KeepsTheHysteresisOfTraining(_AfterTraining):
    """Goes on with what the overflows of its own training have left."""

    def before(self) -> Any:
        return self.engine.scaler._hysteresis

    def after(self, before: Any) -> None:
        self.engine.scaler._hysteresis = before


class KeepsTheRatesOfTraining(_AfterTraining):
    """Does not go back to the rates of the checkpoint."""

    points_at = Points("progress", *VALUES.parts)

    def before(self) -> Any:
        return self.rates()

    def after(self, before: Any) -> None:
        self.set_rates(before)


class KeepsTheScheduleOfTraining(_AfterTraining):
    """The engine's scheduler does not go back."""

    points_at = Points("progress", *VALUES.parts)

    def before(self) -> Any:
        return None if self.engine.lr_scheduler is None else self.engine.lr_scheduler.state_dict()

    def after(self, before: Any) -> None:
        if before is not None:
            self.engine.lr_scheduler.load_state_dict(before)


class CutsRunsByWhatTrains(Mutant):
    """Neighbours of one run have one step count: the runs of before a load go on, though it gives them several."""

    points_at = VALUES

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.runs_of: dict[tuple[bool, ...], Any] = {}
        self.engine.stepper._all_runs = self._all_runs  # type: ignore[method-assign]

    def _all_runs(self, active: list[bool]) -> Any:
        stepper = self.engine.stepper
        runs = [stepper._runs(state, active) for state in stepper.states]
        return self.runs_of.setdefault(tuple(active), runs)


#: Wrong in an engine that has trained, or that goes back to what it has saved.
USED: list[type[Mutant]] = [
    *_LeavesValues.__subclasses__(),
    LeavesWholeUnits,
    LeavesWhatWasRead,
    EvaluatesFromBeforeTheLoad,
    *_AfterTraining.__subclasses__(),
    CutsRunsByWhatTrains,
]
