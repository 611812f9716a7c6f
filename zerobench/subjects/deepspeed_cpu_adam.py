"""DeepSpeed's ZeRO-Offload with its own optimizers for CPUs, kernels that DeepSpeed compiles at their first use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import get_default_build_root

from zerobench.oracles.rules import hyperparameters
from zerobench.scenario import Scenario
from zerobench.subjects.deepspeed import DeepSpeed

_PAGE = "https://www.deepspeed.ai/tutorials/zero-offload/"
#: Compile the kernels once.
BUILD = 'python -c "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"'
BUILD_LION = BUILD.replace("CPUAdam", "CPULion")


class DeepSpeedCpuAdam(DeepSpeed):
    """DeepSpeedCPUAdam on optimizer states in host memory, as users of ZeRO-Offload have it."""

    name = "deepspeed-cpu-adam"
    torch_adam = False

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        if scenario.optimizer_at != "cpu" or scenario.optimizer.name not in ("adam", "adamw"):
            return f"DeepSpeedCPUAdam is Adam or AdamW on states in host memory: {_PAGE}"
        if not _is_built("cpu_adam"):
            return f"DeepSpeedCPUAdam is not compiled: {BUILD}"
        return None

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "zero_force_ds_cpu_optimizer": True}


class DeepSpeedCpuLion(DeepSpeed):
    """DeepSpeedCPULion on optimizer states in host memory."""

    name = "deepspeed-cpu-lion"

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if (reason := super().unsupported(scenario)) is not None:
            return reason
        if scenario.optimizer_at != "cpu" or scenario.optimizer.name != "lion":
            return f"DeepSpeedCPULion is Lion on states in host memory: {_PAGE}"
        if not _is_built("cpu_lion"):
            return f"DeepSpeedCPULion is not compiled: {BUILD_LION}"
        return None

    def _client_optimizer(self) -> torch.optim.Optimizer | None:
        return None

    def _config(self) -> dict[str, Any]:
        optimizer = {"type": "Lion", "params": hyperparameters(self.scenario.optimizer)}
        return {**super()._config(), "optimizer": optimizer, "zero_force_ds_cpu_optimizer": True}


def _is_built(kernel: str) -> bool:
    """Whether torch has compiled the kernel for this user; ranks that wait for a compiler would look like hung ones."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", get_default_build_root()))
    return any(root.glob(f"**/{kernel}/{kernel}.so"))
