"""Settings: one resolved configuration, split between the engine and the surface around it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.compat.config.auto import resolve_auto
from zerobench.compat.config.autocast import autocast_faults
from zerobench.compat.config.keys import (
    HONOURED,
    IGNORED,
    LENIENT,
    REFUSED,
    REFUSED_OPTIMIZERS,
    REMOVED,
    WITHOUT_EFFECT,
    changes_nothing,
)
from zerobench.compat.config.older import modernise
from zerobench.compat.config.reading import read
from zerobench.compat.config.surface import ignored, take
from zerobench.compat.config.zeros import drop_zeros
from zerobench.engine.config.not_honoured import NOT_HONOURED
from zerobench.engine.config.schema import SECTIONS, Config, load
from zerobench.engine.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """A configuration with every value resolved.

    Args:
        raw: DeepSpeed's form, with ``auto`` resolved; the engine's ``config``.
        engine: the keys for the reference engine, with DeepSpeed's defaults.
        without_effect: the given keys that change nothing, with the reason.
    """

    raw: dict[str, Any]
    engine: dict[str, Any]
    without_effect: dict[str, str]

    def section(self, name: str) -> dict[str, Any]:
        """A section of DeepSpeed's form; empty if it is not given."""
        value = self.raw.get(name)
        return value if isinstance(value, dict) else {}


def resolve(config: dict[str, Any] | str | Path, model: Any = None, args: Any = None) -> Settings:
    """Read a configuration, resolve ``auto`` and DeepSpeed's defaults, and sort the keys into the three lists.

    Args:
        config: as DeepSpeed takes it: a dict, a path, or JSON in base64.
        model: the source of the hidden size for ``auto``.
        args: the script's arguments, with Hugging Face's names, for ``auto``.

    Raises:
        ConfigError: a key is refused or resembles another one, a value is wrong, or ``auto`` has no value; one line for
            each error.
    """
    raw = read(config)
    modernise(raw)
    resolve_auto(raw, model, args)
    dropped: dict[str, str] = {}
    faults = list(take(raw))
    dropped |= ignored(raw)
    engine = _sorted(raw, "", dropped, faults)
    drop_zeros(engine, dropped)
    faults += _unused_offload_faults(engine)
    engine = _with_defaults(engine, dropped)
    _default_of_optimizer(engine, raw)
    faults += [*autocast_faults(raw), *_optimizer_faults(engine)]
    try:
        load(engine)
    except ConfigError as error:
        faults.append(str(error))
    if faults:
        raise ConfigError("\n".join(faults))
    return Settings(raw, engine, dropped)


def _optimizer_faults(engine: dict[str, Any]) -> Iterator[str]:
    """The reason for an optimizer of DeepSpeed's that the engine does not have; it is taken out."""
    optimizer = engine.get("optimizer")
    type_ = optimizer.get("type") if isinstance(optimizer, dict) else None
    reason = REFUSED_OPTIMIZERS.get(str(type_).lower())
    if reason is not None:
        del engine["optimizer"]
        yield f"optimizer.type {type_!r} is not offered: {reason}"


def _sorted(section: dict[str, Any], above: str, dropped: dict[str, str], faults: list[str]) -> dict[str, Any]:
    """The engine's keys of a section; the others are dropped, honoured elsewhere, or faults."""
    kept: dict[str, Any] = {}
    for key, value in section.items():
        path = f"{above}.{key}" if above else key
        if path in WITHOUT_EFFECT:
            dropped[path] = WITHOUT_EFFECT[path]
        elif path in REMOVED:
            faults.append(f"{path} is refused at every value, DeepSpeed 0.19.8 has removed it: {REMOVED[path]}")
        elif path in REFUSED:
            neutral, reason = REFUSED[path]
            if not changes_nothing(path, value, neutral):
                faults.append(f"{path} = {value!r} is refused: {reason}")
        elif path in HONOURED:
            continue
        elif isinstance(value, dict) and path in (*SECTIONS, "optimizer.params"):
            kept[key] = _sorted(value, path, dropped, faults)
        elif _is_lenient(key, above, section):
            dropped[path] = IGNORED
        else:
            kept[key] = value  # the engine's own error names an unknown key and the nearest one
    return kept


def _is_lenient(key: str, above: str, section: dict[str, Any]) -> bool:
    """Whether DeepSpeed ignores this key; a name near a known one is a misprint, which is an error here."""
    known = set(SECTIONS.get(above, Config).model_fields) | set(known_keys(above))
    if above == "" and key.startswith("_"):  # a comment
        return True
    return above in LENIENT and key not in known and not difflib.get_close_matches(key, known, n=1, cutoff=0.75)


def known_keys(section: str) -> Iterator[str]:
    """The keys of DeepSpeed in a section, without those of the engine's schema."""
    yield from NOT_HONOURED.get(section, ())
    for path in (*HONOURED, *WITHOUT_EFFECT, *REMOVED, *REFUSED):
        above, _, key = path.rpartition(".")
        if above == section:
            yield key


#: The sections of offload, with the first stage that uses each.
_OFFLOAD = {"offload_optimizer": 1, "offload_param": 3}


def _unused_offload_faults(engine: dict[str, Any]) -> Iterator[str]:
    """The mistakes in a section of offload that the stage does not use; DeepSpeed checks it at every stage, too."""
    zero = engine.get("zero_optimization", {})
    for name, first in _OFFLOAD.items():
        section, stage = zero.get(name), zero.get("stage", 0)
        if section is None or not isinstance(stage, int) or stage >= first:
            continue
        if isinstance(section, dict):
            section = {"nvme_path": ".", **section} if section.get("device") == "nvme" else _of_device(section)
        try:
            load({"train_batch_size": 1, "zero_optimization": {"stage": first, name: section}})
        except ConfigError as error:
            yield str(error)


def _with_defaults(engine: dict[str, Any], dropped: dict[str, str]) -> dict[str, Any]:
    """DeepSpeed's defaults where the engine's differ, without the sections that a stage does not use.

    Two defaults stay the engine's: sums of gradients are fp32, and gradients are reduced at each micro-step at every
    stage, so that all stages are one trajectory.
    """
    zero = {"stage": 0, **engine.get("zero_optimization", {})}
    stage = zero["stage"] if isinstance(zero["stage"], int) else 0  # else the engine's error names it
    zero.setdefault("overlap_comm", stage == 3)
    zero.setdefault("reduction_schedule", "micro_step")
    for name, first in _OFFLOAD.items():
        if name in zero and stage < first:
            del zero[name]
            dropped[f"zero_optimization.{name}"] = f"it needs stage {first}, and DeepSpeed ignores it at stage {stage}"
        elif isinstance(zero.get(name), dict):
            zero[name] = _of_device(zero[name])
    return {"gradient_clipping": 1.0, **engine, "zero_optimization": zero}


def _default_of_optimizer(engine: dict[str, Any], raw: dict[str, Any]) -> None:
    """A parameter for which DeepSpeed's optimizer has another default than the engine's.

    With ``torch_adam`` DeepSpeed takes torch's AdamW, and so its weight decay.
    """
    optimizer = engine.get("optimizer")
    if not isinstance(optimizer, dict):
        return
    params, type_ = optimizer.get("params") or {}, str(optimizer.get("type", "")).lower()
    if type_ == "lion":
        engine["optimizer"] = {**optimizer, "params": {"betas": [0.9, 0.999], **params}}
    of_torch = (raw["optimizer"].get("params") or {}).get("torch_adam", False)
    if of_torch and (type_ == "adamw" or (type_ == "adam" and params.get("adam_w_mode", True))):
        engine["optimizer"] = {**optimizer, "params": {"weight_decay": 0.01, **params}}


#: Keys that an offload section has for files only.
_OF_FILES = frozenset(["nvme_path", "buffer_count", "buffer_size", "pipeline_read", "pipeline_write", "max_in_cpu"])


def _of_device(section: dict[str, Any]) -> dict[str, Any]:
    """The section without the keys that its device does not use, as DeepSpeed allows."""
    if section.get("device", "none") == "nvme":
        return section
    return {key: value for key, value in section.items() if key not in _OF_FILES}
