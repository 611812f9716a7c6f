"""zerobench: the benchmark and conformance suite for ZeRO, and the reference engine's public API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerobench.engine import (
        CheckpointError,
        ConfigError,
        Engine,
        GatheredParameters,
        KernelError,
        OffloadError,
        RankMismatch,
        ZeroOptimizer,
        describe_checkpoint,
        describe_kernels,
        export_checkpoint,
        export_deepspeed_checkpoint,
        initialize,
        prepare_kernels,
        safe_get_full_fp32_param,
        safe_get_full_grad,
        safe_get_full_optimizer_state,
        safe_set_full_fp32_param,
        safe_set_full_grad,
        safe_set_full_optimizer_state,
        verify_checkpoint,
    )

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Engine",
    "GatheredParameters",
    "KernelError",
    "OffloadError",
    "RankMismatch",
    "ZeroOptimizer",
    "describe_checkpoint",
    "describe_kernels",
    "export_checkpoint",
    "export_deepspeed_checkpoint",
    "initialize",
    "prepare_kernels",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "verify_checkpoint",
]


def __getattr__(name: str) -> Any:
    """The engine's API, imported on first use: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zerobench import engine

    return getattr(engine, name)
