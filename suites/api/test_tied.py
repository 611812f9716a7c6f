"""A weight that two blocks share: stage 3 gathers it for each of them."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from zerobench.model_specs import Odd, Recompute
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.trials import Trials

_MODEL = Odd(width=8, hidden=(7, 7, 7), norm=True)


class TiedBlocks(Reference):
    """The last block has the first one's norm and the bias and the weight of its linears."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        first, last = model.get_submodule("blocks.0"), model.get_submodule("blocks.2")
        last.norm = first.norm
        for linear, name in (("up", "weight"), ("down", "bias")):
            setattr(last.get_submodule(linear), name, first.get_submodule(linear).get_parameter(name))
        super().__init__(model, scenario, group)


@pytest.mark.parametrize("recompute", ["none", "reentrant", "non_reentrant"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_blocks_share_weights(reference: Trials, stage: int, recompute: Recompute) -> None:
    """Training has the bits of stage 0, where every rank has every weight whole."""
    name = f"{TiedBlocks.__module__}:{TiedBlocks.__name__}"
    model = Odd(**vars(_MODEL) | {"recompute": recompute})
    scenario = Scenario(model=model, stage=stage, accumulation=2, schedule="micro_step", persistence=0)
    whole = reference.run(scenario.but(stage=0), subject=name)
    assert "blocks.2.up.weight" not in whole[0].steps[-1].parameters
    reference.agree(reference.run(scenario, subject=name), whole)
