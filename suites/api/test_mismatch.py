"""Ranks that are given different things end at once."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from zerobench.errors import RankFailure
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.trials import Trials


class OtherConfig(Reference):
    """Rank 1 is configured with another clipping value."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario.but(clip=0.5) if dist.get_rank(group) == 1 else scenario, group)


class OtherModel(Reference):
    """Rank 1's model has one parameter frozen that trains on the others."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        if dist.get_rank(group) == 1:
            next(model.parameters()).requires_grad_(False)
        super().__init__(model, scenario, group)


@pytest.mark.parametrize(("other", "what"), [(OtherConfig, "config"), (OtherModel, "model")])
def test_ranks_that_do_not_match(reference: Trials, other: type[Reference], what: str) -> None:
    """No rank waits for a time limit: the error says which rank was given another configuration or model, and the next
    Scenario runs."""
    with pytest.raises(RankFailure, match=f"rank 1 was given another {what} than rank 0"):
        reference.run(Scenario(world=3, stage=2), subject=f"{other.__module__}:{other.__name__}")
    reference.run(Scenario(world=3))
