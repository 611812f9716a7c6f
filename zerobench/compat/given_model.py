"""The model as the caller gives it: its precision if the configuration enables none, and torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zerobench.compat.config import Settings
from zerobench.compat.log import log_dist
from zerobench.engine import Engine

#: The configuration that keeps parameters of a dtype as they are.
_KEPT: dict[torch.dtype, dict[str, Any]] = {
    torch.bfloat16: {"bf16": {"enabled": True}},
    torch.float16: {"fp16": {"enabled": True, "loss_scale": 1}},
}


def keep_precision(model: nn.Module, settings: Settings) -> None:
    """Without fp16 and bf16 in the configuration, train a model in 16 bits as it is; DeepSpeed does not cast it either.

    A model of several dtypes becomes fp32, and rank 0 logs it.
    """
    if any(settings.engine.get(name, {}).get("enabled") for name in ("fp16", "bf16")):
        return
    floating = {p.dtype for p in model.parameters() if p.is_floating_point()}
    kept = _KEPT.get(next(iter(floating))) if len(floating) == 1 else None
    if kept is not None:
        settings.engine.update(kept)
        log_dist(f"the parameters are in 16 bits, so the model trains as with {kept}", ranks=[0])
    elif len(floating) > 1:
        names = ", ".join(sorted(map(str, floating)))
        log_dist(f"the parameters are {names}, and become float32; enable bf16 or fp16 to train in 16 bits", ranks=[0])


def without_compile(model: nn.Module, settings: Settings) -> nn.Module:
    """At stage 3 the module that torch.compile was given: the compiler cannot see that parameters are gathered."""
    original = getattr(model, "_orig_mod", None)
    if settings.engine["zero_optimization"]["stage"] < 3 or not isinstance(original, nn.Module):
        return model
    log_dist("torch.compile has no effect at stage 3", ranks=[0])
    return original


def check_memory(engine: Engine) -> None:
    """Refuse a step whose parameters the model no longer has; the first parameter of each unit stands for all.

    Raises:
        RuntimeError: ``Module.half()`` or the like has replaced the parameters' data.
    """
    for state in engine.states:
        slot = state.unit.slots[0]
        if not state.sharded and slot.parameter.data_ptr() != slot.view(state.full).data_ptr():
            raise RuntimeError(
                f"the data of parameter {slot.name!r} was replaced after initialize(), as by Module.half(), so the "
                "engine would train other values; convert the model before, or enable bf16 or fp16"
            )
