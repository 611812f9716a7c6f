"""An engine takes over the model's values of rank 0, and no old gradient."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.trials import Trials

_MODEL = Odd(hidden=(7, 3, 5), frozen=True, tied=True, transposed=True, scalar=True, buffers=True)


class OtherValues(Reference):
    """Every rank but rank 0 has other parameters and buffers before the engine is built."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        if dist.get_rank(group) > 0:
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data.add_(1)
        super().__init__(model, scenario, group)


class OldGradients(Reference):
    """Every parameter has a gradient before the engine is built."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        super().__init__(model, scenario, group)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("other", [OtherValues, OldGradients])
def test_the_engine_starts_from_rank_0(reference: Trials, other: type[Reference], stage: int, dtype: str) -> None:
    """Values that differ by rank and old gradients change no bit of a training."""
    scenario = Scenario(model=_MODEL, world=3, stage=stage, dtype=dtype)  # type: ignore[arg-type]
    name = f"{other.__module__}:{other.__name__}"
    reference.agree(reference.run(scenario, subject=name), reference.run(scenario))
