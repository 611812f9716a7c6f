"""Engines that lose or change a part of their state in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock
from urllib.parse import urlparse
from urllib.request import url2pathname

import torch
from torch import Tensor

from zerobench.engine.checkpoint.apply import Values, set_states
from zerobench.engine.checkpoint.record import read
from zerobench.engine.state.unit import UnitState
from zerobench.subject import Batch, State
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

Loaded = dict[str, Values]
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum")
_LOADING = "zerobench.engine.checkpoint.loading"
_ANYTHING = Points("losses", "gradients", "norm", "skipped", "loss_scale", "parameters", "model_parameters",
                   "optimizer_state")  # fmt: skip


class _Changes(Mutant):
    """Changes the loaded values, by key, before the engine takes them."""

    points_at: ClassVar[Points | tuple[Points, ...]] = _ANYTHING

    def change(self, loaded: Loaded) -> Loaded:
        """The values that the engine takes."""
        raise NotImplementedError

    def load(self, directory: Path) -> None:
        def sabotaged(parts: Any, loaded: Mapping[str, Values]) -> None:
            set_states(parts, self.change(dict(loaded)))

        with mock.patch(f"{_LOADING}.set_states", sabotaged):
            super().load(directory)

    @property
    def second_group(self) -> set[str]:
        """The names of the parameters in the second group."""
        names = {each: name for name, each in self.model.named_parameters()}
        return {names[each] for group in self.optimizer.param_groups[1:] for each in group["params"]}


def _kind(key: str) -> str:
    return key.split(".", maxsplit=1)[0]


def _without(loaded: Loaded, left_out: Callable[[str], bool]) -> Loaded:
    return {key: values for key, values in loaded.items() if not left_out(key)}


def _mapped(loaded: Loaded, kinds: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Loaded:
    """With the tensors of some kinds changed."""
    return {
        key: replace(values, tensor=change(values.tensor)) if _kind(key) in kinds else values
        for key, values in loaded.items()
    }


class LosesMomentsOfTheSecondGroup(_Changes):
    points_at = Points("parameters", "optimizer_state")

    def change(self, loaded: Loaded) -> Loaded:
        return _without(
            loaded, lambda key: key[:4] in ("exp_", "mome", "sum.") and key.split(".", 1)[1] in self.second_group
        )


class LosesAllOptimizerStates(_Changes):
    points_at = Points("parameters", "optimizer_state")

    def change(self, loaded: Loaded) -> Loaded:
        return _without(loaded, lambda key: _kind(key) in _MOMENTS)


class LoadsMastersFromRoundedCopies(_Changes):
    points_at = Points("parameters", "optimizer_state")

    def change(self, loaded: Loaded) -> Loaded:
        dtype = self.engine.config.dtype
        return _mapped(loaded, ("master",), lambda tensor: tensor.to(dtype).float())


class KeepsMomentsInSixteenBits(_Changes):
    points_at = Points("parameters", "optimizer_state")

    def change(self, loaded: Loaded) -> Loaded:
        return _mapped(loaded, _MOMENTS, lambda tensor: tensor.bfloat16().float())


class ShiftsAShardByItsPadding(_Changes):
    """The first element of a rank's range comes to its end, except on rank 0."""

    def change(self, loaded: Loaded) -> Loaded:
        shift = int(self.engine.ranks.rank > 0)
        return _mapped(loaded, ("master",), lambda tensor: tensor.roll(-shift))


class LosesTheLastElementOfARange(_Changes):
    def change(self, loaded: Loaded) -> Loaded:
        return _mapped(loaded, ("master",), lambda tensor: torch.cat([tensor[:-1], tensor.new_zeros(1)]))


class SwapsTheMoments(_Changes):
    points_at = Points("parameters", "optimizer_state")

    def change(self, loaded: Loaded) -> Loaded:
        swapped = {"exp_avg": "exp_avg_sq", "exp_avg_sq": "exp_avg"}
        found: Loaded = {}
        for key, values in loaded.items():
            kind, name = key.split(".", 1)
            other = f"{swapped.get(kind, kind)}.{name}"
            found[other if other in loaded else key] = values
        return found


class ForgetsBuffers(_Changes):
    def change(self, loaded: Loaded) -> Loaded:
        return _without(loaded, lambda key: key.startswith("buffer."))


class ForgetsFrozenParameters(_Changes):
    def change(self, loaded: Loaded) -> Loaded:
        return _without(loaded, lambda key: key.startswith("frozen."))


class LoadsParametersOnTheFirstRankOnly(_Changes):
    def change(self, loaded: Loaded) -> Loaded:
        return loaded if self.engine.ranks.rank == 0 else {}


class _After(Mutant):
    """Right until the state is loaded, and then changed."""

    points_at: ClassVar[Points | tuple[Points, ...]] = _ANYTHING

    def after(self) -> None:
        """Change the state."""
        raise NotImplementedError

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.after()


class ForgetsTheLossScale(_After):
    points_at = Points("loss_scale", "skipped", "norm", "losses", "gradients")

    def after(self) -> None:
        scaler = self.engine.scaler
        if scaler.dynamic:
            scaler.scale = 2.0**scaler.config.initial_scale_power


class ForgetsTheHysteresis(_After):
    points_at = Points("loss_scale", "skipped", "norm", "losses", "gradients")

    def after(self) -> None:
        self.engine.scaler._hysteresis = self.engine.scaler.config.hysteresis


class ForgetsTheLastOverflow(_After):
    points_at = Points("loss_scale", "skipped", "norm", "losses", "gradients")

    def after(self) -> None:
        self.engine.scaler._last_overflow = -1


class BeginsTheWindowAnew(_After):
    """A load counts as an overflow of the step before it."""

    points_at = Points("loss_scale", "skipped", "norm", "losses", "gradients")

    def after(self) -> None:
        self.engine.scaler._last_overflow = self.engine.scaler._step - 1


class RaisesALoweredScaleWithoutSharding(_After):
    """At stage 0 a scale that was saved below the initial one comes back as the initial one."""

    points_at = Points("loss_scale", "skipped", "norm", "losses", "gradients")

    def after(self) -> None:
        scaler = self.engine.scaler
        if scaler.dynamic and self.scenario.stage == 0:
            scaler.scale = max(scaler.scale, 2.0**scaler.config.initial_scale_power)


class ForgetsTheStepCounts(_After):
    points_at = Points("parameters", "optimizer_state")

    def after(self) -> None:
        self.engine.stepper.steps = [0] * len(self.engine.stepper.steps)


class CountsSkippedStepsOfEachParameter(_After):
    """Takes the number of steps, those without an update included, for that of every parameter."""

    points_at = Points("parameters", "optimizer_state")

    def after(self) -> None:
        self.engine.stepper.steps = [self.engine.global_steps] * len(self.engine.stepper.steps)


class ForgetsTheLearningRates(_After):
    """Goes on with the rates of the configuration, not with those that a schedule had set."""

    points_at = Points("parameters", "model_parameters", "optimizer_state", "losses", "gradients", "norm", "reads")

    def sabotage(self) -> None:
        self.configured = self.rates()

    def after(self) -> None:
        self.set_rates(self.configured)


class BeginsWithinAStep(_After):
    points_at = (_ANYTHING, Points("raised"))

    def after(self) -> None:
        self.engine.accumulation._micro_step += 1


class GathersNothingAfterALoad(Mutant):
    """At stages 1 and 2 each rank has its own part of the new parameters and the old others."""

    points_at = _ANYTHING

    def load(self, directory: Path) -> None:
        with mock.patch.object(UnitState, "gather_own", return_value=[]):
            super().load(directory)


class LeavesTheRoundedParameters(Mutant):
    """The masters are new, and the parameters in 16 bits are old until the next step."""

    points_at = _ANYTHING

    def load(self, directory: Path) -> None:
        with mock.patch("zerobench.engine.state.stores.UpdateSlice.follow"):
            super().load(directory)


class KeepsAStaleLatest(Mutant):
    """The first save names the latest checkpoint for ever."""

    points_at = (Points("progress", *_ANYTHING.parts), Points("raised"))

    def save(self, directory: Path) -> None:
        first = not (directory / "latest").exists()
        self.engine.save_checkpoint(directory, client_state=dict(self.client_state), save_latest=first)


class ReadsWhereItHasSaved(Mutant):
    """The checkpoint names its directory in full, and a load reads the files there, wherever the checkpoint is now."""

    points_at = (Points("progress", *_ANYTHING.parts), Points("raised"))

    def save(self, directory: Path) -> None:
        super().save(directory)
        (directory / "place").write_text(str(directory), encoding="utf-8")

    def load(self, directory: Path) -> None:
        super().load(Path((directory / "place").read_text(encoding="utf-8")))


class _LoadsLate(Mutant):
    """What a load gives is there once a step has been trained; :attr:`loaded` until then."""

    loaded = False

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.loaded = True

    def micro_step(self, batch: Batch) -> Tensor:
        self.loaded = False
        return super().micro_step(batch)


class ReadsNoMomentsAfterALoad(_LoadsLate):
    points_at = Points("reads")

    def optimizer_state(self) -> dict[str, State]:
        states = super().optimizer_state()
        if not self.loaded:
            return states
        return {name: {key: torch.zeros_like(each) for key, each in state.items()} for name, state in states.items()}


class ReadsTheModelOfBeforeTheLoad(_LoadsLate):
    points_at = Points("reads")

    def load(self, directory: Path) -> None:
        self.before = super().model_parameters()
        super().load(directory)

    def model_parameters(self) -> State:
        return self.before if self.loaded else super().model_parameters()


class EvaluatesWithDropoutAfterALoad(_LoadsLate):
    """A load leaves the model in training mode for the first evaluation."""

    points_at = Points("reads", "losses")

    def evaluate(self, batch: Batch) -> Tensor:
        if not self.loaded:
            return super().evaluate(batch)
        with torch.no_grad():
            return self.engine(**batch)  # type: ignore[no-any-return]


class HalvesWhatThreeRanksSaved(Mutant):
    """Another number of ranks cuts a checkpoint of three at wrong places."""

    points_at = _ANYTHING

    def load(self, directory: Path) -> None:
        super().load(directory)
        tag = (directory / "latest").read_text().strip()
        if 3 == read(directory / tag).contents.world != self.group.size():
            self.edit_masters(lambda master: master.mul_(0.5))


class SavesTheFullHysteresisAfterALoad(Mutant):
    """An engine that has loaded saves the hysteresis of the configuration."""

    points_at = Points("loss_scale", "skipped", "norm", "losses", "gradients")
    loaded = False

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.loaded = True

    def save(self, directory: Path) -> None:
        scaler = self.engine.scaler
        left = scaler._hysteresis
        if self.loaded:
            scaler._hysteresis = scaler.config.hysteresis
        super().save(directory)
        scaler._hysteresis = left


class ForgetsTheScheduler(Mutant):
    """After a load the engine's scheduler begins again."""

    points_at = Points("progress", *_ANYTHING.parts)  # the rate in force, if a client can read it

    def load(self, directory: Path) -> None:
        _, self.client_state = self.engine.load_checkpoint(directory, load_lr_scheduler_states=False)


class NamesItsDirectoryByAUri(Mutant):
    """Only an absolute path has one."""

    points_at = Points("raised")

    def load(self, directory: Path) -> None:
        super().load(Path(url2pathname(urlparse(directory.as_uri()).path)))


RESUMING: list[type[Mutant]] = [
    *_Changes.__subclasses__(),
    *_After.__subclasses__(),
    *_LoadsLate.__subclasses__(),
    GathersNothingAfterALoad,
    LeavesTheRoundedParameters,
    KeepsAStaleLatest,
    ReadsWhereItHasSaved,
    SavesTheFullHysteresisAfterALoad,
    ForgetsTheScheduler,
    NamesItsDirectoryByAUri,
]
