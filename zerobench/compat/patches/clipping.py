"""A caller's own clipping by torch: it finds no gradients, because the engine takes each as it arrives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.compat.log import notice
from zerobench.engine.registry import has_engine


def watch_clipping() -> None:
    """Make two functions of ``torch.nn.utils`` say that they cannot clip an engine's parameters.

    ``clip_grad_norm_`` does nothing, which is logged once. ``clip_grad_value_`` fails in torch for want of gradients,
    so it raises the reason.
    """
    _watch("clip_grad_norm_", _say_once)
    _watch("clip_grad_value_", _raise)


def _watch(name: str, found_none: Callable[[], None]) -> None:
    clip: Any = getattr(torch.nn.utils, name)
    if hasattr(clip, "watched"):
        return

    @functools.wraps(clip)
    def watched(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if any(isinstance(each, nn.Parameter) and each.grad is None and has_engine(each) for each in listed):
            found_none()
        return clip(listed, *args, **kwargs)

    setattr(watched, "watched", True)  # noqa: B010  # mypy allows no new attribute of a function
    setattr(torch.nn.utils, name, watched)


def _say_once() -> None:
    notice(
        "torch.nn.utils.clip_grad_norm_ has no effect on an engine's parameters, as with DeepSpeed's ZeRO: the engine "
        "clips to gradient_clipping of the configuration"
    )


def _raise() -> None:
    raise RuntimeError(
        "torch.nn.utils.clip_grad_value_ finds no gradients of an engine's parameters, as with DeepSpeed's ZeRO; give "
        "the configuration gradient_clipping, which clips the norm, or clamp what safe_get_full_grad returns and set "
        "it by safe_set_full_grad"
    )
