"""``deepspeed.ops.op_builder``: builders of DeepSpeed's compiled operations, of which none is there to build."""

from __future__ import annotations

from typing import Any, NoReturn


class OpBuilder:
    """Says that its operation cannot be built; the engine steps by torch and by its own kernels."""

    NAME = BUILD_VAR = ""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.NAME

    def is_compatible(self, verbose: bool = False) -> bool:
        """False."""
        return False

    def load(self, verbose: bool = True) -> NoReturn:
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"deepspeed.ops.op_builder.{type(self).__name__} builds nothing here: the engine has no operation of "
            "DeepSpeed; ask is_compatible() first, and use torch's operation"
        )

    builder = load


class CUDAOpBuilder(OpBuilder):
    """One that would need a CUDA compiler."""


class AsyncIOBuilder(OpBuilder):
    """Of asynchronous files."""

    NAME, BUILD_VAR = "async_io", "DS_BUILD_AIO"


class CPUAdamBuilder(OpBuilder):
    """Of Adam on the CPU."""

    NAME, BUILD_VAR = "cpu_adam", "DS_BUILD_CPU_ADAM"


class CPUAdagradBuilder(OpBuilder):
    """Of Adagrad on the CPU."""

    NAME, BUILD_VAR = "cpu_adagrad", "DS_BUILD_CPU_ADAGRAD"


class CPULionBuilder(OpBuilder):
    """Of Lion on the CPU."""

    NAME, BUILD_VAR = "cpu_lion", "DS_BUILD_CPU_LION"


class FusedAdamBuilder(CUDAOpBuilder):
    """Of Adam on a GPU."""

    NAME, BUILD_VAR = "fused_adam", "DS_BUILD_FUSED_ADAM"


class FusedLambBuilder(CUDAOpBuilder):
    """Of Lamb on a GPU."""

    NAME, BUILD_VAR = "fused_lamb", "DS_BUILD_FUSED_LAMB"


class FusedLionBuilder(CUDAOpBuilder):
    """Of Lion on a GPU."""

    NAME, BUILD_VAR = "fused_lion", "DS_BUILD_FUSED_LION"


class UtilsBuilder(OpBuilder):
    """Of flattening."""

    NAME, BUILD_VAR = "utils", "DS_BUILD_UTILS"


#: DeepSpeed's operations that are compiled: none.
compatible_ops: dict[str, Any] = {}
