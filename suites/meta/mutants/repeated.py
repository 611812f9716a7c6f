"""Engines that go wrong if a forward uses a weight in two places: two blocks, or a block and the root.

Class of escape: a weight with two uses. Each is right if every weight is used by one module alone.
"""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points
from zerobench.workload.models.blocks import block_groups

_LINEARS = ("up", "down")


class UntiesBlocks(Mutant):
    """Gives each block weights of its own, as an engine does that shards a block's parameters twice."""

    points_at = Points("gradients", "norm", "parameters", "model_parameters", "reads")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        for block in (block for blocks in block_groups(model) for block in blocks[1:]):
            for name in _LINEARS:
                linear = block.get_submodule(name)
                weight = linear.get_parameter("weight")
                copied = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
                linear.register_parameter("weight", copied)
        super().__init__(model, scenario, group)


class TakesTheGradientOfOneBlock(Mutant):
    """The gradient of a weight that two blocks share is the first block's part."""

    points_at = Points("gradients", "norm")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        for block in (block for blocks in block_groups(model) for block in blocks[1:]):
            for name in _LINEARS:
                _detach(block.get_submodule(name))


class MissesAPartCalledAlone(Mutant):
    """The gradient of a block's linear lacks the calls outside the block's forward."""

    points_at = Points("gradients", "norm", "skipped")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        spec = scenario.model
        if isinstance(spec, Odd) and spec.part_alone and spec.hidden:
            first = model.get_submodule("blocks.0")
            for name in _LINEARS:
                _detach(first.get_submodule(name), within=_running(first))


def _running(block: nn.Module) -> list[bool]:
    """A list that is not empty while the block's forward runs."""
    running: list[bool] = []
    block.register_forward_pre_hook(lambda *_: running.append(True))
    block.register_forward_hook(lambda *_: running.clear(), always_call=True)
    return running


def _detach(linear: nn.Module, within: list[bool] | None = None) -> None:
    """Let a linear's parameters have no gradient from its forward, except while ``within`` is not empty."""
    right = linear.forward

    def wrong(x: Tensor) -> Tensor:
        if within:
            return right(x)  # type: ignore[no-any-return]
        weight, bias = linear.get_parameter("weight"), linear.get_parameter("bias")
        return F.linear(x, weight.detach(), bias if within is None else bias.detach())

    linear.forward = wrong


REPEATED: list[type[Mutant]] = [UntiesBlocks, TakesTheGradientOfOneBlock, MissesAPartCalledAlone]
