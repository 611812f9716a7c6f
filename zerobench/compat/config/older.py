"""Older names and forms of DeepSpeed's keys, put into today's."""

from __future__ import annotations

from typing import Any

from zerobench.engine.errors import ConfigError

#: Keys of zero_optimization that DeepSpeed also takes without their prefix.
_PREFIXED = frozenset(
    [
        "prefetch_bucket_size",
        "param_persistence_threshold",
        "model_persistence_threshold",
        "max_live_parameters",
        "max_reuse_distance",
        "module_granularity_threshold",
        "use_all_reduce_for_fetch_params",
        "allgather_sequential",
        "gather_16bit_weights_on_model_save",
    ]
)


def modernise(raw: dict[str, Any]) -> None:
    """Replace older forms in ``raw``: ``bfloat16``, ``zero_optimization: true``, ``cpu_offload``, missing prefixes.

    Raises:
        ConfigError: an older form and today's are both given.
    """
    if "bfloat16" in raw:
        _move(raw, "bfloat16", "bf16")
    if isinstance(raw.get("zero_optimization"), bool):
        raw["zero_optimization"] = {"stage": int(raw["zero_optimization"])}
    zero = raw.get("zero_optimization")
    if isinstance(zero, dict):
        for key in _PREFIXED & zero.keys():
            _move(zero, key, f"stage3_{key}")
        if "stage3_gather_fp16_weights_on_model_save" in zero:
            _move(zero, "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save")
        _offload(zero)


def _offload(zero: dict[str, Any]) -> None:
    pinned = zero.pop("cpu_offload_use_pin_memory", None)
    for older, section in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if not zero.pop(older, False):
            continue
        if section in zero:
            raise ConfigError(f"zero_optimization has {older} and {section}, which are one setting; take {older} out")
        zero[section] = {"device": "cpu"} if pinned is None else {"device": "cpu", "pin_memory": pinned}
    for section in ("offload_optimizer", "offload_param"):
        if zero.get(section, 0) is None:
            del zero[section]


def _move(section: dict[str, Any], older: str, today: str) -> None:
    if today in section:
        raise ConfigError(f"the configuration has {older} and {today}, which are one setting; take {older} out")
    section[today] = section.pop(older)
