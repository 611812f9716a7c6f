"""The threshold by which DeepSpeed's stage 3 makes leaves of modules that have few parameters for each layer."""

from __future__ import annotations

from functools import lru_cache

from torch import nn

from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.scenario import Scenario
from zerobench.workload.models import shapes

_CONTAINERS = nn.ModuleList, nn.ModuleDict, nn.Sequential


@lru_cache(maxsize=256)
def threshold(model: Gpt | Vit | Odd) -> int:
    """The granularity of the coarsest block; 0 if the whole model is not coarser, as it would be a leaf itself."""
    whole = shapes(Scenario(model=model))
    coarsest = max((_granularity(block) for block in whole.get_submodule("blocks").children()), default=0)
    return coarsest if coarsest < _granularity(whole) else 0


def _granularity(module: nn.Module) -> int:
    """The parameters for each layer, as DeepSpeed counts them (runtime/zero/parameter_offload.py)."""
    layers = [each for each in module.modules() if any(True for _ in each.parameters())]
    elements = sum(p.numel() for each in layers for p in each.parameters(recurse=False))
    return elements // sum(not isinstance(each, _CONTAINERS) for each in layers)
