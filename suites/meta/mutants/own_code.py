"""Engines that are wrong beside code of the client: threads, errors that it catches, and hooks that it sets.

Class of escape: code of the client that no property runs. Every draw trains in the thread that has built the engine,
on the first ranks of the job and with gradients in each call, and nothing in a forward raises.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.state.unit import UnitState
from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.client import LATER
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class StepsByTheSettingsOfItsThread(Mutant):
    """Keeps a setting of the update in the thread that has built it; the others have another one."""

    points_at = Points("progress", *LATER.parts)  # if the engine steps the schedule

    def sabotage(self) -> None:
        self.of_thread = threading.local()
        self.of_thread.factor = 1.0

    def step(self) -> Outcome:
        factor = getattr(self.of_thread, "factor", 2.0)
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


class CountsAForwardThatRaised(Mutant):
    """The gradients of the next micro-step count twice, as if the forward that raised had had a backward."""

    points_at = LATER
    raised = False

    def micro_step(self, batch: Batch) -> Tensor:
        again, self.raised = self.raised, True
        loss = super().micro_step({**batch, "scale": 2.0 * batch.get("scale", 1.0)} if again else batch)
        self.raised = False
        return loss / 2 if again else loss


class KeepsUnitsOfAForwardThatRaised(Mutant):
    """A forward that raised leaves a copy of each parameter, as units that stay whole."""

    points_at = Points("left")

    def micro_step(self, batch: Batch) -> Tensor:
        try:
            return super().micro_step(batch)
        except Exception:
            self.left = [torch.empty_like(state.full) for state in self.engine.states]
            raise


class GoesOnAfterABackwardThatRaised(Mutant):
    """Adds to the gradients that a backward had made before it raised."""

    points_at = LATER

    def sabotage(self) -> None:
        self.engine._check_whole = lambda: None  # type: ignore[method-assign]


class DropsHooksOfParameters(Mutant):
    """Hooks that the client has set before the engine is built are lost, as if it had made parameters of its own."""

    points_at = LATER

    def sabotage(self) -> None:
        for parameter in self.trained.values():
            if parameter._backward_hooks:
                parameter._backward_hooks.clear()


class DropsHooksOfARestingParameter(Mutant):
    """Hooks that the client has set on a parameter are lost in a step in which the parameter does not train."""

    points_at = LATER

    def micro_step(self, batch: Batch) -> Tensor:
        for parameter in self.trained.values():
            with torch._C.DisableTorchFunctionSubclass():
                if not parameter.requires_grad and parameter._backward_hooks:
                    parameter._backward_hooks.clear()
        return super().micro_step(batch)


class RunsTheHooksOfItsBuilding(Mutant):
    """Hooks that the client sets on a module after the engine is built do not run, as if it had kept their forwards."""

    points_at = LATER

    def sabotage(self) -> None:
        self.hooks = [hooks for module in self.model.modules() for hooks in _hooks_of(module)]
        self.early = [set(hooks) for hooks in self.hooks]

    def micro_step(self, batch: Batch) -> Tensor:
        for hooks, early in zip(self.hooks, self.early, strict=True):
            for late in set(hooks) - early:
                del hooks[late]
        return super().micro_step(batch)


def _hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]


class RunsTheHooksThatBlocksHad(RunsTheHooksOfItsBuilding):
    """So it is with hooks on a block alone: those on the model run, as the client calls it."""

    def sabotage(self) -> None:
        self.hooks = [hooks for block in self.model.get_submodule("blocks").children() for hooks in _hooks_of(block)]
        self.early = [set(hooks) for hooks in self.hooks]


class RunsTheOutputHooksThatBlocksHad(RunsTheHooksOfItsBuilding):
    """So it is with hooks on the output of a block alone."""

    def sabotage(self) -> None:
        self.hooks = [block._forward_hooks for block in self.model.get_submodule("blocks").children()]
        self.early = [set(hooks) for hooks in self.hooks]


class RunsTheGradientHooksThatBlocksHad(RunsTheHooksOfItsBuilding):
    """So it is with hooks on the gradients of a block alone."""

    def sabotage(self) -> None:
        blocks = [*self.model.get_submodule("blocks").children()]
        self.hooks = [hooks for block in blocks for hooks in (block._backward_hooks, block._backward_pre_hooks)]
        self.early = [set(hooks) for hooks in self.hooks]


class RunsRemovedHooksOfBlocks(Mutant):
    """A hook on the input of a block runs on once the client has removed it, as if the engine had copied the hooks."""

    points_at = LATER

    def micro_step(self, batch: Batch) -> Tensor:
        for block in self.model.get_submodule("blocks").children():
            seen = self.seen.setdefault(block, {})
            seen.update(block._forward_pre_hooks)
            block._forward_pre_hooks.update(seen)
        return super().micro_step(batch)

    def sabotage(self) -> None:
        self.seen: dict[nn.Module, dict[int, Any]] = {}


class DropsLateHooksOfParameters(Mutant):
    """Hooks that the client sets on parameters after the engine is built are lost at the first micro-step."""

    points_at = LATER

    def micro_step(self, batch: Batch) -> Tensor:
        for parameter in self.trained.values():
            if parameter._backward_hooks:
                parameter._backward_hooks.clear()
        return super().micro_step(batch)


class TakesUsesForContexts(Mutant):
    """The end of a reading in a backward takes the uses of parameters there for a context that keeps units whole, and
    the backward ends without its reductions."""

    points_at = LATER

    def sabotage(self) -> None:
        unsharder = self.engine.unsharder
        if unsharder is not None:
            begin = unsharder.hold

            def hold(states: Iterable[UnitState]) -> None:
                begin(states)
                unsharder._held = all(unsharder._pins.values())

            unsharder.hold = hold  # type: ignore[method-assign]


class EditsAfterTheForward(Mutant):
    """Values that the client sets within a forward come into force after its backward."""

    points_at = LATER
    inside = False
    late: State = {}  # noqa: RUF012

    def micro_step(self, batch: Batch) -> Tensor:
        self.inside, self.late = True, {}
        loss = super().micro_step(batch)
        self.inside = False
        if self.late:
            super().set_parameters(self.late)
        return loss

    def set_parameters(self, values: State) -> None:
        if self.inside:
            self.late = values
        else:
            super().set_parameters(values)


class StepsByTheEngineOfAnotherThread(Mutant):
    """Notes the engine that steps for the whole process, and takes other rates if another one has begun meanwhile."""

    points_at = LATER
    stepping: ClassVar[Mutant | None] = None

    def step(self) -> Outcome:
        kind = StepsByTheEngineOfAnotherThread
        kind.stepping = self
        time.sleep(0.005)
        factor = 1.0 if kind.stepping is self else 2.0
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


class StepsByItsNumberInTheJob(Mutant):
    """Takes the number of its process in the job for that in its group, and other rates if they are not the same."""

    points_at = Points("progress", *LATER.parts)  # if the engine steps the schedule

    def step(self) -> Outcome:
        factor = 1.0 if dist.get_rank() == dist.get_rank(self.group) else 2.0
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


class LoadsFromTheFirstRankOfTheJob(TorchDdp):
    """Receives what it loads from rank 0 of the job: in a group without this one nothing comes."""

    points_at = LATER

    def load(self, directory: Path) -> None:
        before = {name: each.detach().clone() for name, each in self.masters.items()}
        super().load(directory)
        if dist.get_global_rank(self.group, 0) != 0:
            self.set_parameters(before)


class RoundsMastersToTheDefaultDtype(Mutant):
    """The update's temporary memory has torch's default dtype."""

    points_at = LATER

    def step(self) -> Outcome:
        outcome = super().step()
        if torch.get_default_dtype() == torch.bfloat16:
            self.edit_masters(lambda master: master.copy_(master.bfloat16()))
        return outcome


class TrainsOnCastsOfAnInferenceMode(TorchDdp):
    """What an evaluation in inference mode has cast stays for the next forward, and half of it gets no gradient."""

    points_at = LATER
    cast = False

    def evaluate(self, batch: Batch) -> Tensor:
        self.cast = torch.is_inference_mode_enabled()
        return super().evaluate(batch)

    def micro_step(self, batch: Batch) -> Tensor:
        if not self.cast:
            return super().micro_step(batch)
        self.cast = False
        return super().micro_step({**batch, "scale": 0.5 * batch.get("scale", 1.0)})


class StepsAsInAnEvaluationAfterAnEdit(Mutant):
    """An edit without gradients leaves the engine as if it evaluated: the next update has half of the rate."""

    points_at = Points("progress", *LATER.parts)
    evaluates = False

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        self.evaluates = not torch.is_grad_enabled()

    def step(self) -> Outcome:
        factor, self.evaluates = (0.5 if self.evaluates else 1.0), False
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


#: By what the client does.
IN_THREADS: list[type[Mutant]] = [StepsByTheSettingsOfItsThread]
SIDE_BY_SIDE: list[type[Mutant]] = [StepsByTheEngineOfAnotherThread]
LEFT_BY_FAILURES: list[type[Mutant]] = [KeepsUnitsOfAForwardThatRaised]
AFTER_FAILURES: list[type[Mutant]] = [CountsAForwardThatRaised, GoesOnAfterABackwardThatRaised]
WITHOUT_HOOKS: list[type[Mutant]] = [DropsHooksOfParameters, DropsHooksOfARestingParameter]
IN_FORWARDS: list[type[Mutant]] = [TakesUsesForContexts, EditsAfterTheForward]
IN_OTHER_GROUPS: list[type[Mutant] | type[TorchDdp]] = [StepsByItsNumberInTheJob, LoadsFromTheFirstRankOfTheJob]
IN_MODES: list[type[Mutant] | type[TorchDdp]] = [
    RoundsMastersToTheDefaultDtype,
    TrainsOnCastsOfAnInferenceMode,
    StepsAsInAnEvaluationAfterAnEdit,
]
WITHOUT_LATE_HOOKS: list[type[Mutant]] = [
    RunsTheHooksOfItsBuilding,
    RunsTheHooksThatBlocksHad,
    RunsTheOutputHooksThatBlocksHad,
    RunsTheGradientHooksThatBlocksHad,
    RunsRemovedHooksOfBlocks,
    DropsLateHooksOfParameters,
]
