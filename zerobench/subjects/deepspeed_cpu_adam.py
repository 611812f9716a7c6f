"""DeepSpeed's ZeRO-Offload with its own optimizers for CPUs, kernels that DeepSpeed compiles at their first use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.cpp_extension import get_default_build_root

from zerobench.extras import is_installed
from zerobench.oracles.rules import hyperparameters
from zerobench.scenario import Scenario
from zerobench.subjects.deepspeed import DeepSpeed

_PAGE = "https://www.deepspeed.ai/tutorials/zero-offload/"
#: Compile the kernels once.
BUILD = 'python -c "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"'
BUILD_LION = BUILD.replace("CPUAdam", "CPULion")


class _OfKernel(DeepSpeed):
    """One of DeepSpeed's kernels on optimizer states in host memory, for the rules that it computes."""

    kernel: ClassVar[str]
    file: ClassVar[str]
    build: ClassVar[str]
    #: By a Scenario's names of the rules, DeepSpeed's.
    rules: ClassVar[Mapping[str, str]]

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if is_installed("deepspeed") and not _is_built(cls.file):
            return f"{cls.kernel} is not compiled: {cls.build}"
        if scenario.optimizer_at != "cpu":
            return f"{cls.kernel} updates states in host memory: {_PAGE}"
        if scenario.optimizer.name not in cls.rules:
            return f"{cls.kernel} is {' or '.join(cls.rules.values())}: {_PAGE}"
        return super().unsupported(scenario)

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "zero_force_ds_cpu_optimizer": True}


class DeepSpeedCpuAdam(_OfKernel):
    """DeepSpeedCPUAdam on optimizer states in host memory, as users of ZeRO-Offload have it."""

    name = "deepspeed-cpu-adam"
    torch_adam = False
    kernel, file, build = "DeepSpeedCPUAdam", "cpu_adam", BUILD
    rules: ClassVar[Mapping[str, str]] = {"adam": "Adam", "adamw": "AdamW"}


class DeepSpeedCpuLion(_OfKernel):
    """DeepSpeedCPULion on optimizer states in host memory."""

    name = "deepspeed-cpu-lion"
    kernel, file, build = "DeepSpeedCPULion", "cpu_lion", BUILD_LION
    rules: ClassVar[Mapping[str, str]] = {"lion": "Lion"}

    def _client_optimizer(self) -> torch.optim.Optimizer | None:
        return None

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "optimizer": {"type": "Lion", "params": hyperparameters(self.scenario.optimizer)}}


def _is_built(kernel: str) -> bool:
    """Whether torch has compiled the kernel for this user; ranks that wait for a compiler would look like hung ones."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", get_default_build_root()))
    return any(root.glob(f"**/{kernel}/{kernel}.so"))
