"""DeepSpeed whose parameters are read as its users publish them: consolidated from a checkpoint by ``zero_to_fp32``."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import torch.distributed as dist

from zerobench.driver import directory_of
from zerobench.scenario import Scenario
from zerobench.subject import State
from zerobench.subjects import deepspeed_saving
from zerobench.subjects.deepspeed import DeepSpeed
from zerobench.workload.data import DTYPES

_SAVING = "https://deepspeed.readthedocs.io/en/latest/model-checkpointing.html#recovering-fp32-weights"


class DeepSpeedConsolidated(DeepSpeed):
    """Each reading of parameters saves a checkpoint and consolidates it."""

    name = "deepspeed-zero-to-fp32"
    savings = deepspeed_saving.IN_ONE_FOLDER

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if not scenario.placement.optimizer:
            return f"DeepSpeed's zero_to_fp32 reads the checkpoints of stages 1 to 3: {_SAVING}"
        return super().unsupported(scenario)

    def parameters(self) -> State:
        found = self._consolidated()
        return {name: found[name] for name in self.trained if name in found}

    def model_parameters(self) -> State:
        found, dtype = self._consolidated(), DTYPES[self.scenario.dtype]
        return {name: found[name].to(dtype) for name, _ in self.model.named_parameters() if name in found}

    def _consolidated(self) -> State:
        """The fp32 values by name, on every rank."""
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        with directory_of(self.group) as directory, redirect_stdout(io.StringIO()):
            self._save(directory, {})
            dist.barrier()
            found = get_fp32_state_dict_from_zero_checkpoint(str(directory))
            return {name: value.float().clone() for name, value in found.items()}
