"""The section ``torch_autocast``: forwards under ``torch.autocast``, over fp32 parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def autocast_faults(raw: dict[str, Any]) -> Iterator[str]:
    """Values of an enabled section that cannot be honoured."""
    section = raw.get("torch_autocast")
    if not isinstance(section, dict) or not section.get("enabled"):
        return
    dtype = section.get("dtype", "bfloat16")
    if str(dtype).removeprefix("torch.") not in ("bfloat16", "bf16"):
        yield (
            f"torch_autocast.dtype = {dtype!r} is refused: it needs a loss scale, and DeepSpeed's stages differ: "
            "stages 1 to 3 clip before the scale is undone, stage 0 afterwards; use 'bfloat16', or the section fp16"
        )
    for name in ("fp16", "bf16"):
        if (raw.get(name) or {}).get("enabled"):
            yield f"torch_autocast and {name} are both enabled; enable one, because {name} casts the model itself"
