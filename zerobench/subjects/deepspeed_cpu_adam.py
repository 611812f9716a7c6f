"""DeepSpeed's ZeRO-Offload with its own Adam for CPUs, a kernel that DeepSpeed compiles when it is first used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.cpp_extension import get_default_build_root

from zerobench.scenario import Scenario
from zerobench.subjects.deepspeed import DeepSpeed

_PAGE = "https://www.deepspeed.ai/tutorials/zero-offload/"
#: Compiles the kernel once.
BUILD = 'python -c "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"'


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
        if not _is_built():
            return f"DeepSpeedCPUAdam is not compiled: {BUILD}"
        return None

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "zero_force_ds_cpu_optimizer": True}


def _is_built() -> bool:
    """Whether torch has compiled the kernel for this user; ranks that wait for a compiler would look like hung ones."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", get_default_build_root()))
    return any(root.glob("**/cpu_adam/cpu_adam.so"))
