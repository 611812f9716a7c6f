"""A caller's own clip_grad_norm_: the engine takes each gradient as it arrives, so that it finds none to clip."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.compat.log import notice
from zerobench.engine.registry import has_engine


def watch_clipping() -> None:
    """Make ``torch.nn.utils.clip_grad_norm_`` say once that it does nothing to an engine's parameters."""
    clip: Any = torch.nn.utils.clip_grad_norm_
    if hasattr(clip, "watched"):
        return

    @functools.wraps(clip)
    def watched(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if any(isinstance(each, nn.Parameter) and each.grad is None and has_engine(each) for each in listed):
            notice(
                "torch.nn.utils.clip_grad_norm_ has no effect on an engine's parameters, as with DeepSpeed's ZeRO: the "
                "engine clips to gradient_clipping of the configuration"
            )
        return clip(listed, *args, **kwargs)

    setattr(watched, "watched", True)  # noqa: B010  # mypy allows no new attribute of a function
    torch.nn.utils.clip_grad_norm_ = watched
