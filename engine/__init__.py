"""The reference ZeRO engine: right by construction, small enough to read in an afternoon.

Start with :class:`engine.engine.Engine`; docs/contract.md says what a training step computes, bit for bit.
"""

from engine.engine import Engine, initialize
from engine.errors import ConfigError, KernelError, OffloadError, RankMismatch
from engine.groups import ZeroOptimizer
from engine.native import kernels, prepare_kernels
from engine.reading import (
    GatheredParameters,
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
)

__all__ = [
    "ConfigError",
    "Engine",
    "GatheredParameters",
    "KernelError",
    "OffloadError",
    "RankMismatch",
    "ZeroOptimizer",
    "initialize",
    "kernels",
    "prepare_kernels",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
]
