"""Engines that ignore a setting, or take one value for another: they train another Scenario than the given one.

Class of escape: a value that is never drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

#: A client that schedules a hyperparameter reads in the groups what the engine made of it.
_UPDATE = Points("optimizer_state", "parameters", "progress")
_SCALE = Points("loss_scale")
_VALUES = Points("losses", "gradients", "norm", "model_parameters", "skipped")


class _Otherwise(Mutant):
    """Trains the Scenario that ``otherwise`` makes of the given one."""

    otherwise: ClassVar[Any]  # a static method: Scenario -> Scenario

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, type(self).otherwise(scenario), group)


def _rule(**changes: Any) -> Any:
    """The optimizer with other hyperparameters."""
    return staticmethod(lambda s: s.but(optimizer=replace(s.optimizer, **changes)))


def _scale(**changes: Any) -> Any:
    """The dynamic loss scale with other settings."""
    return staticmethod(lambda s: s if s.loss_scale.static else s.but(loss_scale=replace(s.loss_scale, **changes)))


def _fields(change: Callable[[Scenario], dict[str, Any]]) -> Any:
    return staticmethod(lambda s: s.but(**change(s)))


class IgnoresBetas(_Otherwise):
    points_at = _UPDATE
    otherwise = _rule(betas=(0.9, 0.999))


class SwapsBetas(_Otherwise):
    points_at = _UPDATE
    otherwise = staticmethod(lambda s: s.but(optimizer=replace(s.optimizer, betas=s.optimizer.betas[::-1])))


class IgnoresEps(_Otherwise):
    points_at = _UPDATE
    otherwise = _rule(eps=1e-8)


class IgnoresLrDecay(_Otherwise):
    points_at = _UPDATE
    otherwise = _rule(lr_decay=0.0)


class IgnoresMomentum(_Otherwise):
    points_at = _UPDATE
    otherwise = staticmethod(
        lambda s: s.but(optimizer=replace(s.optimizer, momentum=0.9 if s.optimizer.momentum else 0.0))
    )


class IgnoresWeightDecay(_Otherwise):
    points_at = _UPDATE
    otherwise = _rule(weight_decay=0.0)


class DecouplesAdamsDecay(_Otherwise):
    points_at = _UPDATE
    otherwise = staticmethod(
        lambda s: s.but(optimizer=replace(s.optimizer, name="adamw")) if s.optimizer.name == "adam" else s
    )


class CouplesAdamWsDecay(_Otherwise):
    points_at = _UPDATE
    otherwise = staticmethod(
        lambda s: s.but(optimizer=replace(s.optimizer, name="adam")) if s.optimizer.name == "adamw" else s
    )


class JoinsTheGroups(_Otherwise):
    points_at = _UPDATE
    otherwise = _rule(second_group=False)


class SpreadsTheThirdGroup(_Otherwise):
    """Knows groups of matrices and of the rest alone."""

    points_at = _UPDATE
    otherwise = _rule(third_group=False)


class _TakesFromTheFirstGroup(Mutant):
    """The second group has some hyperparameters of the first."""

    points_at = _UPDATE
    keys: ClassVar[tuple[str, ...]]

    def sabotage(self) -> None:
        first, *others = self.optimizer.param_groups
        for group in others:
            group.update({key: first[key] for key in self.keys if key in first})


class IgnoresTheSecondGroupsBetas(_TakesFromTheFirstGroup):
    keys = ("betas",)


class IgnoresTheSecondGroupsEps(_TakesFromTheFirstGroup):
    keys = ("eps",)


class IgnoresTheSecondGroupsMomentum(_TakesFromTheFirstGroup):
    keys = ("momentum",)


class IgnoresTheSecondGroupsLrDecay(_TakesFromTheFirstGroup):
    keys = ("lr_decay",)


class ClipsAtOne(_Otherwise):
    points_at = _UPDATE
    otherwise = _fields(lambda s: {"clip": 1.0 if s.clip else 0.0})


class NeverClipsAtOne(_Otherwise):
    points_at = _UPDATE
    otherwise = _fields(lambda s: {"clip": 0.0 if s.clip == 1.0 else s.clip})


class IgnoresTheWindow(_Otherwise):
    points_at = _SCALE
    otherwise = _scale(window=1000)


class IgnoresHysteresis(_Otherwise):
    points_at = _SCALE
    otherwise = _scale(hysteresis=1)


class IgnoresConsecutiveHysteresis(_Otherwise):
    points_at = _SCALE
    otherwise = _scale(consecutive_hysteresis=False)


class RefillsHysteresisAlways(_Otherwise):
    points_at = _SCALE
    otherwise = _scale(consecutive_hysteresis=True)


class IgnoresTheLeastScale(_Otherwise):
    points_at = _SCALE
    otherwise = _scale(minimum=1e-3)


class IgnoresTheInitialScale(_Otherwise):
    points_at = (_VALUES, Points("loss_scale"))
    otherwise = _scale(initial_power=8)


class IgnoresTheStaticScale(_Otherwise):
    points_at = (_VALUES, Points("loss_scale"))
    otherwise = staticmethod(
        lambda s: s.but(loss_scale=replace(s.loss_scale, static=16.0)) if s.loss_scale.static else s
    )


class CommunicatesInTheModelsDtype(_Otherwise):
    points_at = _VALUES
    otherwise = _fields(lambda s: {"communication_dtype": None})


class AccumulatesInFp32Always(_Otherwise):
    points_at = _VALUES
    otherwise = _fields(lambda s: {"accumulator_dtype": None})


class TakesFp16AccumulatorsForBf16(_Otherwise):
    points_at = _VALUES
    otherwise = _fields(
        lambda s: {"accumulator_dtype": "bf16" if s.accumulator_dtype == "fp16" else s.accumulator_dtype}
    )


class IgnoresTheSchedule(_Otherwise):
    points_at = _VALUES
    otherwise = _fields(lambda s: {"schedule": "auto"})


class AddsChunksOnAnotherGrid(_Otherwise):
    points_at = Points("norm")
    otherwise = _fields(lambda s: {"chunk": 32 if s.chunk > 32 else 64})


class WeighsLeavesBySamples(Mutant):
    """A leaf with fewer samples than the configuration's micro-batch counts for less."""

    points_at = Points("gradients", "norm", "skipped")
    weight = 1.0

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        engine: Any = self.engine
        backward = engine.backward
        engine.backward = lambda loss: backward(loss * self.weight)
        self.usual = scenario.micro_batch

    def micro_step(self, batch: Batch) -> Tensor:
        self.weight = len(next(iter(batch.values()))) / self.usual
        return super().micro_step(batch)


IGNORED: list[type[Mutant]] = [
    WeighsLeavesBySamples,
    *_Otherwise.__subclasses__(),
    *_TakesFromTheFirstGroup.__subclasses__(),
]
