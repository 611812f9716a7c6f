"""The reference ZeRO engine: correct by construction and short enough to read in an afternoon.

Start with :class:`zerobench.engine.engine.Engine`; docs/reference/contract.md defines a training step, bit for bit.
"""

from zerobench.engine.checkpoint.deepspeed.writing import export_deepspeed_checkpoint
from zerobench.engine.checkpoint.offline import describe_checkpoint, export_checkpoint, verify_checkpoint
from zerobench.engine.construction import initialize
from zerobench.engine.engine import Engine
from zerobench.engine.errors import CheckpointError, ConfigError, KernelError, OffloadError, RankMismatch
from zerobench.engine.inspect import (
    GatheredParameters,
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
)
from zerobench.engine.native import describe_kernels, prepare_kernels
from zerobench.engine.optim.optimizer import ZeroOptimizer
from zerobench.engine.setting import safe_set_full_fp32_param, safe_set_full_grad, safe_set_full_optimizer_state

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
