"""Engines that go wrong if a model is built or called in a rare way.

Class of escape: the structure of a model. Each is right if blocks return one tensor, hold no other blocks, are listed
once, and run with gradients alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from zerobench.engine.optim.check import GradientCheck
from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points
from zerobench.workload.data import DTYPES
from zerobench.workload.models.odd_blocks import Nested, Output


class _OfBlocks(Mutant):
    """Has the model's blocks."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.model, self.scenario = model, scenario
        self.blocks = list(model.get_submodule("blocks").children())
        super().__init__(model, scenario, group)


class CutsGradientsInADataclass(_OfBlocks):
    """Finds the tensors of an output in tuples and dicts alone; no gradient comes through the others."""

    points_at = Points("gradients", "norm", "skipped")

    def sabotage(self) -> None:
        for block in self.blocks:
            block.register_forward_hook(_detach_dataclass)


def _detach_dataclass(module: nn.Module, args: Any, output: Any) -> Any:
    return Output(output.hidden.detach(), output.branch) if isinstance(output, Output) else output


class TakesTheLastTensorOfAnOutput(_OfBlocks):
    """Of a dict the wrong tensor reaches the model."""

    points_at = Points("losses")

    def sabotage(self) -> None:
        for block in self.blocks:
            block.register_forward_hook(_swapped)


def _swapped(module: nn.Module, args: Any, output: Any) -> Any:
    return {"hidden": output["branch"], "branch": output["hidden"]} if isinstance(output, dict) else output


class CountsABlockThatRanAsActive(_OfBlocks):
    """If a block's forward ran, its parameters have a gradient: zeros, with which decay and momentum move them."""

    points_at = Points("optimizer_state", "parameters", "model_parameters", "reads")

    def sabotage(self) -> None:
        self.ran: set[nn.Module] = set()
        for block in self.blocks:
            block.register_forward_hook(self._runs)
        order = {p: i for i, p in enumerate(p for p in self.model.parameters() if p.requires_grad)}
        self.places = {block: [order[p] for p in block.parameters() if p in order] for block in self.blocks}
        self.patch_check(self._counted)

    def _runs(self, block: nn.Module, *_: Any) -> None:
        if self.model.training:
            self.ran.add(block)

    def _counted(self, check: GradientCheck) -> GradientCheck:
        active = check.active.clone()
        for block in self.ran:
            active[self.places[block]] = True
        self.ran.clear()
        return dataclasses.replace(check, active=active)


class RunsANoGradForwardWithOldWeights(_OfBlocks):
    """With gradients disabled, a block in training keeps the weights of the first such forward."""

    points_at = Points("losses", "gradients", "norm")

    def sabotage(self) -> None:
        for block in self.blocks:
            _keep_weights(block)


def _keep_weights(block: nn.Module) -> None:
    kept: dict[str, Tensor] = {}
    right = block.forward

    def wrong(x: Tensor) -> Any:
        if torch.is_grad_enabled() or not block.training:
            return right(x)
        if not kept:
            kept.update({name: p.detach().clone() for name, p in block.named_parameters()})
        block.forward = right
        try:
            return functional_call(block, kept, (x,))
        finally:
            block.forward = wrong

    block.forward = wrong


class NoGradOutlastsItsForward(_OfBlocks):
    """After a forward with gradients disabled, the block's next forward has none either."""

    points_at = Points("gradients", "norm", "skipped")

    def sabotage(self) -> None:
        if self.scenario.model.recompute == "none":  # a checkpoint's first forward has gradients disabled as well
            for block in self.blocks:
                _outlast(block)


def _outlast(block: nn.Module) -> None:
    before: list[bool] = []

    def detached(module: nn.Module, args: Any, output: Any) -> Any:
        enabled = torch.is_grad_enabled()
        cut = enabled and before == [False]
        before[:] = [enabled or not module.training]
        return output.detach() if cut and isinstance(output, Tensor) else output

    block.register_forward_hook(detached)


class AddsForEachPlaceInTheList(_OfBlocks):
    """Adds a block's gradient once for each of its places in the list of blocks."""

    points_at = Points("gradients", "norm", "skipped")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        listed = list(model.get_submodule("blocks")._modules.values())
        for block in dict.fromkeys(listed):
            if block is not None and (times := listed.count(block)) > 1:
                _multiply(block.parameters(), float(times))
        super().__init__(model, scenario, group)


class ReducesTheInnerBlocksAlone(_OfBlocks):
    """The gradient of a parameter beside a list of blocks stays rank 0's."""

    points_at = Points("gradients", "norm", "skipped")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        factor = 0.0 if dist.get_rank(group) else float(dist.get_world_size(group))
        for block in model.get_submodule("blocks").children():
            if isinstance(block, Nested):
                _multiply([block.gain], factor)
        super().__init__(model, scenario, group)


def _multiply(parameters: Any, factor: float) -> None:
    """Let each parameter's gradient be ``factor`` times what it is."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * factor)


class ForgetsEditsOfOutputs(_OfBlocks):
    """A block computes with the output of the block before as it was, without the edits since."""

    points_at = Points("losses", "gradients", "norm")

    def sabotage(self) -> None:
        self.last: Tensor | None = None
        spec = self.scenario.model
        if isinstance(spec, Odd) and spec.in_place and not spec.stopped and spec.recompute == "none":
            for block in self.blocks:
                block.register_forward_pre_hook(self._replaced)
                block.register_forward_hook(self._kept)

    def _replaced(self, block: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return args if self.last is None else (self.last,)

    def _kept(self, block: nn.Module, args: Any, output: Any) -> None:
        self.last = output.clone() if isinstance(output, Tensor) and torch.is_grad_enabled() else None

    def micro_step(self, batch: Batch) -> Tensor:
        self.last = None
        loss = super().micro_step(batch)
        self.last = None
        return loss


class CastsIntegerBuffers(_OfBlocks):
    """Casts every buffer to the dtype of the parameters, a count as well."""

    points_at = Points("losses", "gradients", "norm", "evaluation", "reads")

    def sabotage(self) -> None:
        self._cast()

    def _cast(self) -> None:
        for buffer in self.model.buffers():
            if not buffer.is_floating_point():
                buffer.copy_(buffer.to(DTYPES[self.scenario.dtype]))

    def step(self) -> Outcome:
        outcome = super().step()
        self._cast()
        return outcome


STRUCTURE: list[type[Mutant]] = [
    CutsGradientsInADataclass,
    TakesTheLastTensorOfAnOutput,
    CountsABlockThatRanAsActive,
    RunsANoGradForwardWithOldWeights,
    NoGradOutlastsItsForward,
    AddsForEachPlaceInTheList,
    ReducesTheInnerBlocksAlone,
    ForgetsEditsOfOutputs,
    CastsIntegerBuffers,
]
