"""Numbers of 0 or less that DeepSpeed takes and the engine's schema excludes; published configurations have them."""

from __future__ import annotations

from typing import Any

_DYNAMIC = "only a dynamic loss scale reads it"
_SUB_GROUP = "DeepSpeed then updates one parameter at a time; the result is the same"
_NO = ("", "0", "0.0", "false")


def drop_zeros(engine: dict[str, Any], dropped: dict[str, str]) -> None:
    """Move such values from the engine's keys to those without effect.

    DeepSpeed checks the numbers of the dynamic loss scale only if there is one. At ``sub_group_size`` 0, as in the
    configurations of Axolotl, its stage 3 has a group of the optimizer for each parameter.
    """
    fp16, zero = engine.get("fp16"), engine.get("zero_optimization")
    if isinstance(fp16, dict) and (not _given(fp16, "enabled") or _given(fp16, "loss_scale")):
        for key in ("loss_scale_window", "min_loss_scale", "hysteresis"):
            _drop(fp16, "fp16", key, _DYNAMIC, dropped)
    if isinstance(zero, dict) and zero.get("sub_group_size") == 0:
        _drop(zero, "zero_optimization", "sub_group_size", _SUB_GROUP, dropped)


def _given(section: dict[str, Any], key: str) -> bool:
    return str(section.get(key) or "").lower() not in _NO


def _drop(section: dict[str, Any], name: str, key: str, reason: str, dropped: dict[str, str]) -> None:
    value = section.get(key, 1)
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
        del section[key]
        dropped[f"{name}.{key}"] = reason
