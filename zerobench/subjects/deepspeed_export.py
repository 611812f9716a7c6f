"""The weights that DeepSpeed exports for a program without it, read back into a plain model."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from zerobench.driver import directory_of
from zerobench.scenario import Scenario
from zerobench.subject import State
from zerobench.workload.models import shapes

_FILE = "pytorch_model.bin"


def exported(engine: Any, scenario: Scenario, group: dist.ProcessGroup) -> State:
    """The parameters of the Scenario's model, which has loaded every entry that ``save_16bit_model`` has saved, and no
    other. A collective."""
    with directory_of(group) as directory:
        engine.save_16bit_model(str(directory), _FILE)
        dist.barrier()
        state = torch.load(directory / _FILE, weights_only=True)
    model = shapes(scenario)
    names = [name for name, _ in model.named_parameters()]
    model.load_state_dict(state, assign=True)  # which gives a shared parameter to each of its names by itself
    return {name: model.get_parameter(name).detach().clone() for name in names}
