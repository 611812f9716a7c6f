"""Older names and other forms of DeepSpeed's keys, put into today's."""

from __future__ import annotations

from typing import Any

from zerobench.compat.config import surface
from zerobench.engine.config import schema
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

    A section that is null is one that is not given; so is an optimizer or a scheduler whose ``type`` is null, as in
    scripts with a reference model.

    Raises:
        ConfigError: an older form and today's are both given, or a section is neither an object nor null.
    """
    if "bfloat16" in raw:
        _move(raw, "bfloat16", "bf16")
    if isinstance(raw.get("zero_optimization"), bool):
        raw["zero_optimization"] = {"stage": int(raw["zero_optimization"])}
    _check_sections(raw)
    zero = raw.get("zero_optimization")
    if isinstance(zero, dict):
        _stage(zero)
        for key in _PREFIXED & zero.keys():
            _move(zero, key, f"stage3_{key}")
        if "stage3_gather_fp16_weights_on_model_save" in zero:
            _move(zero, "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save")
        _offload(zero)


def _check_sections(raw: dict[str, Any]) -> None:
    for name in (*schema.SECTIONS, *surface.Surface.model_fields):
        if raw.get(name, 0) is None:
            del raw[name]
    for name in (*schema.SECTIONS, *surface.SECTIONS, "checkpoint"):
        if not isinstance(raw.get(name, {}), dict):
            raise ConfigError(f"{name} is a section, which is an object of keys and values, got {raw[name]!r}")
    for name in ("optimizer", "scheduler"):
        if raw.get(name, {}).get("type", "") is None:
            del raw[name]


def _stage(zero: dict[str, Any]) -> None:
    """The stage as an integer if it is one in another form; pydantic, which DeepSpeed reads it by, takes these."""
    given = zero.get("stage", 0)
    if given is None:
        del zero["stage"]
    elif isinstance(given, bool | float | str) and str(given).removesuffix(".0").isdecimal():
        zero["stage"] = int(float(given))


def _offload(zero: dict[str, Any]) -> None:
    for flag in ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"):
        if not isinstance(zero.get(flag, False), bool):
            raise ConfigError(f"zero_optimization.{flag} is true or false, got {zero[flag]!r}")
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
