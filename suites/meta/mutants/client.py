"""Engines that are right by themselves, and wrong for a client with other calls or with things of its own.

Class of escape: a call that no property makes, and a thing of the client's that nobody looks at. Between its steps a
client saves and trains on, asks for no outcome, draws random numbers, and uses a batch again.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from zerobench.recording import State
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

#: Where a later step shows it.
LATER = Points(
    "losses", "gradients", "norm", "loss_scale", "skipped", "optimizer_state", "parameters", "model_parameters"
)


class SavingForgetsTheStepCounts(Mutant):
    points_at = LATER

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.engine.stepper.steps = [0] * len(self.engine.stepper.steps)


class SavingRoundsMasters(Mutant):
    points_at = LATER

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.edit_masters(lambda master: master.copy_(master.bfloat16()))


class TheSecondSaveMovesTheRate(Mutant):
    points_at = Points("progress", *LATER.parts)  # a recording has the rate in force
    saved = 0

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.saved += 1
        if self.saved == 2:
            self.scale_rates(2.0)


class StepsWithTheNextRateIfUnread(Mutant):
    """It leaves the learning rate as it is until somebody asks for the outcome."""

    points_at = LATER

    def advance(self) -> None:
        self.scale_rates(0.5)
        super().advance()
        self.scale_rates(2.0)


class CountsAStepWhenItIsRead(Mutant):
    points_at = LATER

    def advance(self) -> None:
        before = list(self.engine.stepper.steps)
        super().advance()
        self.engine.stepper.steps = before


class LosesEverySecondUnreadStep(Mutant):
    points_at = LATER

    def advance(self) -> None:
        if self.engine.global_steps % 2:
            for state in self.engine.states:
                if state.unit.trainable:
                    state.own_gradient.zero_()
        super().advance()


class _Touches(Mutant):
    thing: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.points_at = Points("client", name=cls.thing)


class ScalesTheBatchInPlace(_Touches):
    thing = "batch x, by micro_step"

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        batch["x"].mul_(0.5)
        return loss


class ClearsTheBatchOfAnEvaluation(_Touches):
    thing = "batch y, by evaluate"

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        batch["y"].zero_()
        return loss


class DrawsARandomNumberInAStep(_Touches):
    thing = "torch's random numbers, by step"

    def step(self) -> Outcome:
        torch.rand(1)
        return super().step()


class SeedsWhenItIsBuilt(_Touches):
    thing = "torch's random numbers, by building"

    def __init__(self, model: nn.Module, scenario: Scenario, group: torch.distributed.ProcessGroup) -> None:
        torch.manual_seed(0)
        super().__init__(model, scenario, group)


class SeedsPythonInAReading(_Touches):
    thing = "Python's random numbers, by parameters"

    def parameters(self) -> State:
        random.seed(0)
        return super().parameters()


class LeavesGradientsOffAfterAnEvaluation(_Touches):
    """The next micro-step turns them on again, so that training goes on."""

    thing = "the grad mode, by evaluate"

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        torch.set_grad_enabled(False)
        return loss

    def micro_step(self, batch: Batch) -> Tensor:
        torch.set_grad_enabled(True)
        return super().micro_step(batch)

    def close(self) -> None:
        torch.set_grad_enabled(True)
        super().close()


class LeavesEvaluationModeUntilTheNextStep(_Touches):
    thing = "the mode of blocks.0, by micro_step"

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.model.eval()
        return loss

    def micro_step(self, batch: Batch) -> Tensor:
        self.model.train()
        return super().micro_step(batch)


class WritesTheRateThatItUsed(_Touches):
    thing = "lr of group 0, by step"

    def step(self) -> Outcome:
        outcome = super().step()
        for group in self.optimizer.param_groups:
            group["initial_lr"] = group.get("initial_lr", group["lr"])
            group["lr"] = 0.0
        return outcome

    def micro_step(self, batch: Batch) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] or group.get("initial_lr", 0.0)
        return super().micro_step(batch)


class MakesNewBuffersInASave(_Touches):
    """The client's own reference to a buffer has old values from then on."""

    thing = "the attribute of running_mean, by save"

    def save(self, directory: Path) -> None:
        super().save(directory)
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.clone()


class ClearsAttributesInAnEdit(_Touches):
    """Gives each parameter the attributes that it has when it is made."""

    thing = "the attribute of stem.weight, by set_parameters"

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        for parameter in self.model.parameters():
            vars(parameter).pop("of_client", None)


class DrawsANumberOfNumpyInAStep(_Touches):
    thing = "numpy's random numbers, by step"

    def step(self) -> Outcome:
        np.random.rand()  # noqa: NPY002 - the global generator
        return super().step()


class SetsThePrecisionOfProducts(_Touches):
    thing = "the precision of products, by building"

    def sabotage(self) -> None:
        torch.set_float32_matmul_precision("high")

    def close(self) -> None:
        torch.set_float32_matmul_precision("highest")
        super().close()


class TrainsEveryModule(_Touches):
    """The client has put a block into evaluation mode, and trains the others."""

    thing = "the mode of blocks.0, by micro_step"

    def micro_step(self, batch: Batch) -> Tensor:
        self.model.train()
        return super().micro_step(batch)


class LoadsTheNumbersOfRankZero(_Touches):
    """After a load every rank draws the same random numbers, for example the same order of its data."""

    thing = "torch's normal numbers, after a load"

    def load(self, directory: Path) -> None:
        super().load(directory)
        states = [torch.get_rng_state()]
        torch.distributed.broadcast_object_list(states, group_src=0, group=self.engine.ranks.group)
        torch.set_rng_state(states[0])


class ForgetsPythonsNumbers(_Touches):
    thing = "Python's normal numbers, after a load"

    def load(self, directory: Path) -> None:
        before = random.getstate()
        super().load(directory)
        random.setstate(before)


class LosesNumpysSecondNormalNumber(_Touches):
    """numpy draws normal numbers in pairs; the second one of a pair is not there after a load."""

    thing = "numpy's normal numbers, after a load"

    def load(self, directory: Path) -> None:
        super().load(directory)
        state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator
        assert isinstance(state, dict)
        np.random.set_state(state | {"has_gauss": 0})  # noqa: NPY002


class _ChangesWhenALoadFails(Mutant):
    points_at = LATER

    def change(self) -> None:
        """Change a state."""
        raise NotImplementedError

    def load(self, directory: Path) -> None:
        try:
            super().load(directory)
        except Exception:
            self.change()
            raise


class RestartsTheStepCountsWhenALoadFails(_ChangesWhenALoadFails):
    def change(self) -> None:
        self.engine.stepper.steps = [7] * len(self.engine.stepper.steps)


class RoundsMastersWhenALoadFails(_ChangesWhenALoadFails):
    def change(self) -> None:
        self.edit_masters(lambda master: master.copy_(master.bfloat16()))


def _leave(engine: Mutant, remove: Callable[[], None]) -> None:
    """Leave a hook that does nothing until the engine's object is gone: the processes then serve other engines."""
    weakref.finalize(engine, remove)


class LeavesAModuleHookAfterALoad(_Touches):
    thing = "torch.nn.modules.module._global_forward_pre_hooks"

    def load(self, directory: Path) -> None:
        super().load(directory)
        _leave(self, nn.modules.module.register_module_forward_pre_hook(lambda *given: None).remove)


class LeavesAnOptimizerHookAfterAnEvaluation(_Touches):
    thing = "torch.optim.optimizer._global_optimizer_post_hooks"

    def evaluate(self, batch: Batch) -> Tensor:
        _leave(self, register_optimizer_step_post_hook(lambda *given: None).remove)
        return super().evaluate(batch)


SAVING = [SavingForgetsTheStepCounts, SavingRoundsMasters, TheSecondSaveMovesTheRate]
UNREAD = [StepsWithTheNextRateIfUnread, CountsAStepWhenItIsRead, LosesEverySecondUnreadStep]
TOUCHING: list[type[_Touches]] = [
    ScalesTheBatchInPlace,
    ClearsTheBatchOfAnEvaluation,
    DrawsARandomNumberInAStep,
    SeedsWhenItIsBuilt,
    SeedsPythonInAReading,
    LeavesGradientsOffAfterAnEvaluation,
    LeavesEvaluationModeUntilTheNextStep,
    WritesTheRateThatItUsed,
    DrawsANumberOfNumpyInAStep,
    SetsThePrecisionOfProducts,
    TrainsEveryModule,
    MakesNewBuffersInASave,
    ClearsAttributesInAnEdit,
]
NUMBERS: list[type[_Touches]] = [
    LoadsTheNumbersOfRankZero,
    ForgetsPythonsNumbers,
    LosesNumpysSecondNormalNumber,
]
FAILING: list[type[Mutant]] = [RestartsTheStepCountsWhenALoadFails, RoundsMastersWhenALoadFails]
HOOKS: list[type[_Touches]] = [LeavesAModuleHookAfterALoad, LeavesAnOptimizerHookAfterAnEvaluation]
