"""Engines that resume by way of DeepSpeed's layout, and read it wrongly."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine import export_deepspeed_checkpoint
from zerobench.engine.checkpoint.deepspeed import opened, reading, trained, universal
from zerobench.engine.checkpoint.deepspeed.trained import Pieces, Trained
from zerobench.engine.checkpoint.directory import read_latest
from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subjects.deepspeed_config import config
from zerobench.suites.api.checkpoint.universal import convert
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_VALUES = Points("losses", "gradients", "norm", "skipped", "parameters", "model_parameters", "optimizer_state")
_STATES = Points("parameters", "optimizer_state")
_SCALE = Points("loss_scale", "skipped", "norm", "losses", "gradients")


class RightThroughDeepSpeed(Mutant):
    """Exports its checkpoint to DeepSpeed's layout, of one rank more, and loads that; nothing is wrong."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        model = scenario.model if isinstance(scenario.model, Odd) else Odd()
        missing = {
            "each rank's buffers": model.buffers and scenario.world > 1,
            "a parameter that is not contiguous": model.transposed,
            "a step count of each parameter": scenario.leaves_some_out,
            "the number of micro-steps": scenario.shortens,
        }
        return next(
            (f"DeepSpeed's layout has no place for {what}" for what, there in missing.items() if there),
            super().unsupported(scenario),
        )

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.scenario = scenario
        super().__init__(model, scenario, group)

    def save(self, directory: Path) -> None:
        super().save(directory)
        if dist.get_rank(self.group) == 0:
            self.export(directory)
        dist.barrier(self.group)

    def export(self, directory: Path) -> None:
        """Write the other layout to ``directory/foreign``, on rank 0."""
        scenario = self.scenario.but(stage=self.scenario.stage or 1, sub_group=40)
        export_deepspeed_checkpoint(directory, directory / "foreign", config(scenario), self.scenario.world + 1)

    def load(self, directory: Path) -> None:
        with self.sabotaged():
            super().load(directory / "foreign")

    def sabotaged(self) -> AbstractContextManager[Any]:
        """Inside, the layout is read wrongly."""
        return nullcontext()


class RightThroughUniversal(RightThroughDeepSpeed):
    """By way of a universal checkpoint, which has Adam's states alone, and one for each parameter with elements."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.optimizer.name not in ("adam", "adamw"):
            return "a universal checkpoint has Adam's states"
        return super().unsupported(scenario)

    def export(self, directory: Path) -> None:
        super().export(directory)
        foreign = directory / "foreign"
        tag = read_latest(foreign)
        assert tag is not None
        into = foreign / f"{tag}_universal"
        shutil.rmtree(into, ignore_errors=True)  # of an earlier save of this step
        convert(foreign / tag, into)
        (foreign / "latest").unlink()


def _replaced(module: Any, name: str, make: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Inside, a function is ``make(function)``."""
    return mock.patch.object(module, name, make(getattr(module, name)))


class _ChangesTheTrained(RightThroughDeepSpeed):
    """Changes the trained parameters as they are read."""

    points_at = _STATES

    def change(self, found: Trained) -> None:
        """Change them in place."""
        raise NotImplementedError

    def sabotaged(self) -> AbstractContextManager[Any]:
        def make(original: Any) -> Any:
            def changed(*arguments: Any) -> Trained:
                found: Trained = original(*arguments)
                self.change(found)
                return found

            return changed

        return _replaced(opened, "of_ranks", make)


def _map(found: Trained, kinds: Sequence[str], change: Callable[[Tensor], Tensor], names: Sequence[str]) -> None:
    for key, pieces in found.values.items():
        kind, name = key.split(".", 1)
        if kind in kinds and name in names:
            found.values[key] = [change(each) for each in pieces]


class TakesRoundedMasters(_ChangesTheTrained):
    """As if the module's weights were the masters."""

    def change(self, found: Trained) -> None:
        dtype = self.engine.config.dtype
        _map(found, ("master",), lambda tensor: tensor.to(dtype).float(), list(found.shapes))


class LosesStatesOfTheSecondFlatGroup(_ChangesTheTrained):
    def change(self, found: Trained) -> None:
        second = [name for names, _ in found.groups[1:] for name in names]
        _map(found, self.engine.optimizer.state_names, lambda tensor: tensor.new_zeros(tensor.shape), second)


class GivesAllGroupsTheFirstOnesOptions(_ChangesTheTrained):
    points_at = Points("progress", *_STATES.parts)  # those in force, if the client sets them by step

    def change(self, found: Trained) -> None:
        found.groups = [(names, found.groups[0][1]) for names, _ in found.groups]


class CountsStepsFromOne(_ChangesTheTrained):
    def change(self, found: Trained) -> None:
        found.steps = {name: count + 1 for name, count in found.steps.items()}


class MixesTheOrderOfRanks(RightThroughDeepSpeed):
    points_at = _VALUES

    def sabotaged(self) -> AbstractContextManager[Any]:
        return _replaced(opened, "of_ranks", lambda original: lambda shapes, ranks: original(shapes, ranks[::-1]))


class ReadsPaddingAsValues(RightThroughDeepSpeed):
    """Strips the padding of a partition from its beginning: that at its end is read as values."""

    points_at = _VALUES

    def sabotaged(self) -> AbstractContextManager[Any]:
        def flat(original: Any) -> Any:
            def padded(masters: Pieces, states: Sequence[Mapping[str, Any]]) -> dict[str, Pieces]:
                found: dict[str, Pieces] = original(masters, states)
                return {kind: [each.roll(1) for each in pieces] for kind, pieces in found.items()}

            return padded

        return _replaced(trained, "_flat", flat)


class LosesTheLossScaleOfTheFiles(RightThroughDeepSpeed):
    points_at = _SCALE

    def sabotaged(self) -> AbstractContextManager[Any]:
        def make(original: Any) -> Any:
            return lambda source, state: replace_scale(original(source, state), source)

        def replace_scale(entry: Any, source: Any) -> Any:
            return entry.model_copy(update={"scale": source._parts.scaler.state()["scale"]})

        return _replaced(reading.DeepSpeedSource, "_scaler", make)


class TakesSkippedStepsForUpdates(RightThroughDeepSpeed):
    """Takes the number of steps for that of updates."""

    points_at = _STATES

    def sabotaged(self) -> AbstractContextManager[Any]:
        def make(original: Any) -> Any:
            def counted(source: Any) -> Any:
                entry = original(source)
                return entry.model_copy(update={"steps": dict.fromkeys(entry.steps, source._model["global_steps"])})

            return counted

        return _replaced(reading.DeepSpeedSource, "_optimizer", make)


class ForgetsTheStepsOfUniversal(RightThroughUniversal):
    points_at = _STATES

    def sabotaged(self) -> AbstractContextManager[Any]:
        return _replaced(universal, "step_of", lambda original: lambda state, options: 0)


class ReadsTheFilesOfUniversalInAnotherOrder(RightThroughUniversal):
    """Takes the first moment for the second, and the second for the first."""

    points_at = _STATES

    def sabotaged(self) -> AbstractContextManager[Any]:
        other = {"exp_avg": "exp_avg_sq", "exp_avg_sq": "exp_avg"}

        def make(original: Any) -> Any:
            def swapped(*arguments: Any) -> dict[str, Pieces]:
                found: dict[str, Pieces] = original(*arguments)
                return {other.get(kind, kind): pieces for kind, pieces in found.items()}

            return swapped

        return _replaced(universal, "_values", make)


class ReadsTheModelOfUniversalOnly(RightThroughUniversal):
    """Takes the model's rounded parameters for the masters, as DeepSpeed's converter does before the first update."""

    points_at = _STATES

    def sabotaged(self) -> AbstractContextManager[Any]:
        dtype = self.engine.config.dtype

        def make(original: Any) -> Any:
            def rounded(*arguments: Any) -> dict[str, Pieces]:
                found: dict[str, Pieces] = original(*arguments)
                return found | {"master": [each.to(dtype).float() for each in found["master"]]}

            return rounded

        return _replaced(universal, "_values", make)


RIGHT = [RightThroughDeepSpeed, RightThroughUniversal]
THROUGH_DEEPSPEED: list[type[Mutant]] = [
    *_ChangesTheTrained.__subclasses__(),
    MixesTheOrderOfRanks,
    ReadsPaddingAsValues,
    LosesTheLossScaleOfTheFiles,
    TakesSkippedStepsForUpdates,
    ForgetsTheStepsOfUniversal,
    ReadsTheFilesOfUniversalInAnotherOrder,
    ReadsTheModelOfUniversalOnly,
]
