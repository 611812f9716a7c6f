"""The keys that the surface honours itself: their sections, types and defaults, as DeepSpeed has them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from zerobench.compat.config.keys import IGNORED
from zerobench.engine.config.schema import unknown_key, value_faults
from zerobench.engine.section import Section


class Lenient(Section):
    """A section in which DeepSpeed ignores a name that it does not know; one that resembles a key is an error here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Files(Section):
    """``tensorboard`` and ``csv_monitor``."""

    enabled: bool = False
    output_path: str | None = None
    job_name: str | None = None


class Wandb(Section):
    """``wandb``."""

    enabled: bool = False
    group: str | None = None
    team: str | None = None
    project: str | None = None


class Comet(Section):
    """``comet``."""

    enabled: bool = False
    samples_log_interval: int = Field(default=100, gt=0)
    project: str | None = None
    workspace: str | None = None
    api_key: str | None = None
    experiment_name: str | None = None
    experiment_key: str | None = None
    online: bool | None = None
    mode: str | None = None


class FlopsProfiler(Lenient):
    """``flops_profiler``."""

    enabled: bool = False
    recompute_fwd_factor: float = 0.0
    profile_step: int = 1
    module_depth: int = -1
    top_modules: int = 1
    detailed: bool = True
    output_file: str | None = None


class CommsLogger(Section):
    """``comms_logger``."""

    enabled: bool = False
    prof_all: bool = True
    prof_ops: tuple[str, ...] = ()
    verbose: bool = False
    debug: bool = False


class TorchAutocast(Lenient):
    """``torch_autocast``."""

    enabled: bool = False
    dtype: str = "bfloat16"
    lower_precision_safe_modules: tuple[str, ...] | None = None


class Scheduler(Lenient):
    """``scheduler``: the type names a schedule, which checks its parameters itself."""

    type: str | None = None
    params: dict[str, Any] | None = None

    @field_validator("params")
    @classmethod
    def _with_types(cls, params: dict[str, Any] | None) -> dict[str, Any] | None:
        return params and {name: _typed(value) for name, value in params.items()}


class ActivationCheckpointing(Lenient):
    """``activation_checkpointing``."""

    partition_activations: bool = False
    contiguous_memory_optimization: bool = False
    cpu_checkpointing: bool = False
    number_checkpoints: int | None = Field(default=None, gt=0)
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False

    @field_validator("number_checkpoints", mode="before")
    @classmethod
    def _no_number(cls, value: Any) -> Any:
        return value or None  # false and 0, as published, are none


class Fp16Flags(BaseModel):
    """The surface's key of ``fp16``; the engine has the others."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    auto_cast: bool = False


class ZeroFlags(BaseModel):
    """The surface's key of ``zero_optimization``; the engine has the others."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    stage3_gather_16bit_weights_on_model_save: bool = False


class CheckpointFlags(BaseModel):
    """The key of ``checkpoint`` that is checked; no key of the section has an effect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tag_validation: Literal["Warn", "Fail", "Ignore"] = "Warn"

    @field_validator("tag_validation", mode="before")
    @classmethod
    def _in_any_case(cls, value: Any) -> Any:
        return value.capitalize() if isinstance(value, str) else value


class Surface(BaseModel):
    """The surface's keys of the top level; the engine and the lists have the others."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    steps_per_print: float | None = None
    wall_clock_breakdown: bool = False
    dump_state: bool = False
    dataloader_drop_last: bool = False
    memory_breakdown: bool = False
    tensorboard: Files = Files()
    csv_monitor: Files = Files()
    wandb: Wandb = Wandb()
    comet: Comet = Comet()
    flops_profiler: FlopsProfiler = FlopsProfiler()
    comms_logger: CommsLogger = CommsLogger()
    torch_autocast: TorchAutocast = TorchAutocast()
    scheduler: Scheduler = Scheduler()
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing()
    fp16: Fp16Flags = Fp16Flags()
    zero_optimization: ZeroFlags = ZeroFlags()
    checkpoint: CheckpointFlags = CheckpointFlags()


#: The sections whose keys are all the surface's.
SECTIONS = {
    name: field.annotation
    for name, field in Surface.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


def _typed(value: Any) -> Any:
    """The number or flag that a string says, such as 5 for ``"5"``; any other value as it is."""
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def take(raw: dict[str, Any]) -> Iterator[str]:
    """Give the surface's keys in ``raw`` their types, such as False for ``"false"``; yield one line for each fault."""
    for name, section in SECTIONS.items():
        yield from unknown_keys(name, raw.get(name, {}), list(section.model_fields), issubclass(section, Lenient))
    try:
        found = Surface.model_validate(raw)
    except ValidationError as error:
        yield from value_faults(error)
        return
    for name, value in found.model_dump(exclude_unset=True).items():
        raw[name] = {**raw[name], **value} if isinstance(value, dict) else value


def ignored(raw: dict[str, Any]) -> dict[str, str]:
    """The names in lenient sections that are not known, with the reason why they have no effect."""
    lenient = {name: section.model_fields for name, section in SECTIONS.items() if issubclass(section, Lenient)}
    return {
        f"{name}.{key}": IGNORED for name, known in lenient.items() for key in raw.get(name, {}) if key not in known
    }


def unknown_keys(section: str, given: dict[str, Any], known: list[str], lenient: bool = False) -> Iterator[str]:
    """One line for each key of a section that is not known; a lenient section ignores names that resemble none."""
    for key in given:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.75 if lenient else 0.6)
        if key not in known and (near or not lenient):
            yield unknown_key(f"{section}.{key}", known, near)
