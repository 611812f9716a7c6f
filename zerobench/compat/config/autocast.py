"""The section ``torch_autocast``: forwards under ``torch.autocast``, over fp32 parameters."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

_BFLOAT16, _FLOAT16 = ("bfloat16", "bf16"), ("float16", "fp16", "half")


def autocast_faults(raw: dict[str, Any]) -> Iterator[str]:
    """Values of an enabled section that cannot be honoured."""
    section = raw.get("torch_autocast")
    if not isinstance(section, dict) or not section.get("enabled"):
        return
    dtype = section.get("dtype", "bfloat16")
    name = str(dtype).removeprefix("torch.")
    if name not in (*_BFLOAT16, *_FLOAT16):
        yield f"torch_autocast.dtype must be 'bfloat16', got {dtype!r}"
    if name in _FLOAT16:
        yield (
            f"torch_autocast.dtype = {dtype!r} is refused: it needs a loss scale, and DeepSpeed's stages differ: "
            "stages 1 to 3 clip before the scale is undone, stage 0 afterwards; use 'bfloat16', or the section fp16"
        )
    for name in ("fp16", "bf16"):
        if (raw.get(name) or {}).get("enabled"):
            yield f"torch_autocast and {name} are both enabled; enable one, because {name} casts the model itself"
    for given in section.get("lower_precision_safe_modules") or ():
        if not _is_found(given):
            yield (
                f"torch_autocast.lower_precision_safe_modules: there is no {given!r}; give names of classes, such as "
                "'torch.nn.Linear'"
            )


def _is_found(path: Any) -> bool:
    """Whether it is a name of a module, a dot, and a name in it."""
    module, _, name = str(path).rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except (ImportError, ValueError):
        return False
