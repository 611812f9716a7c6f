"""``deepspeed.checkpointing``: activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

_configured: list[bool] = []


def configure(
    mpu_: Any,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Accept DeepSpeed's arguments. They place a checkpoint's inputs in DeepSpeed, and have no effect here."""
    _configured.append(True)


def is_configured() -> bool:
    """Whether ``configure`` was called."""
    return bool(_configured)


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Run ``function`` without keeping its activations; backward runs it again, with the same random numbers."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)
