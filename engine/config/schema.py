"""The engine's configuration: DeepSpeed's keys, each one honoured or refused, none ignored.

DeepSpeed 0.19 ignores unknown keys at the top level. Here an unknown key is an error that suggests the nearest known
one. If DeepSpeed has a key and this engine does not honour it, the error states this.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from zerobench.engine import rules
from zerobench.engine.config.not_honoured import NOT_HONOURED
from zerobench.engine.config.offload import OffloadOptimizer, OffloadParam
from zerobench.engine.errors import ConfigError
from zerobench.engine.section import Section

DtypeName = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Fp16(Section):
    """fp16 with loss scaling: static if ``loss_scale`` is positive, else DeepSpeed's dynamic state machine."""

    enabled: bool = False
    loss_scale: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    initial_scale_power: int = Field(default=16, ge=0, le=126)
    loss_scale_window: int = Field(default=1000, gt=0)
    hysteresis: int = Field(default=2, gt=0)
    consecutive_hysteresis: bool = False
    min_loss_scale: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)


class Bf16(Section):
    """bf16 parameters and gradients with fp32 master weights."""

    enabled: bool = False


class DataTypes(Section):
    """The dtype in which gradients are accumulated between micro-steps; fp32 unless given."""

    grad_accum_dtype: DtypeName | None = None


class Zero(Section):
    """``zero_optimization``; all sizes are in elements.

    ``chunk_size`` and ``reduction_schedule`` are this engine's own keys. ``chunk_size`` is the grid on which parameters
    and ownership are aligned and norms are summed. ``reduction_schedule`` sets the micro-steps that reduce gradients
    (docs/reference/contract.md).
    """

    stage: int = Field(default=0, ge=0, le=3)
    overlap_comm: bool = True
    reduce_bucket_size: int = Field(default=500_000_000, gt=0)
    allgather_bucket_size: int = Field(default=500_000_000, gt=0)
    stage3_prefetch_bucket_size: int = Field(default=50_000_000, ge=0)
    stage3_param_persistence_threshold: int = Field(default=100_000, ge=0)
    stage3_max_live_parameters: int = Field(default=1_000_000_000, ge=0)
    sub_group_size: int = Field(default=1_000_000_000, gt=0)
    chunk_size: int = 1024
    reduction_schedule: Literal["auto", "micro_step", "boundary"] = "auto"
    offload_optimizer: OffloadOptimizer = OffloadOptimizer()
    offload_param: OffloadParam = OffloadParam()

    @field_validator("chunk_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value < 32 or value & (value - 1):
            raise ValueError("must be a power of two, at least 32 (so that every parameter starts on 64 bytes)")
        return value

    @model_validator(mode="after")
    def _schedule_fits_stage(self) -> Self:
        if self.stage >= 2 and self.reduction_schedule == "boundary":
            raise ValueError(
                f"reduction_schedule 'boundary' keeps whole gradients between micro-steps, which stage {self.stage} "
                "does not; use 'micro_step' or stage 0 or 1"
            )
        return self

    @model_validator(mode="after")
    def _offload_fits_stage(self) -> Self:
        for name, section, stages in (
            ("offload_optimizer", self.offload_optimizer, (1, 2, 3)),
            ("offload_param", self.offload_param, (3,)),
        ):
            if section.device != "none" and self.stage not in stages:
                raise ValueError(
                    f"{name} moves what only owners keep, and at stage {self.stage} every rank keeps it; use stage "
                    f"{' or '.join(map(str, stages))}, or device 'none'"
                )
        return self

    @property
    def reduces_every_micro_step(self) -> bool:
        """Whether gradients are reduced at every micro-step rather than once at the accumulation boundary."""
        if self.reduction_schedule == "auto":
            return self.stage >= 2
        return self.reduction_schedule == "micro_step"


class OptimizerConfig(Section):
    """``optimizer``: the type of a rule of engine/rules, and the rule's parameters."""

    type: str
    params: SerializeAsAny[Section] = Field(default=None, validate_default=True)

    @field_validator("type")
    @classmethod
    def _any_case(cls, value: str) -> str:
        return rules.spelled(value)

    @field_validator("params", mode="before")
    @classmethod
    def _params_of_type(cls, value: Any, others: ValidationInfo) -> Section:
        rule = rules.find(others.data.get("type"))
        return (
            rule.params.model_validate({} if value is None else value) if rule else Section()
        )  # else the error is in type


class Config(Section):
    """A complete configuration; docs/reference/configuration.md describes every key."""

    train_batch_size: int | None = Field(default=None, gt=0)
    train_micro_batch_size_per_gpu: int | None = Field(default=None, gt=0)
    gradient_accumulation_steps: int | None = Field(default=None, gt=0)
    managed_gradient_accumulation: bool = True
    gradient_clipping: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    fp16: Fp16 = Fp16()
    bf16: Bf16 = Bf16()
    zero_optimization: Zero = Zero()
    optimizer: OptimizerConfig | None = None
    communication_data_type: DtypeName | None = None
    data_types: DataTypes = DataTypes()

    @model_validator(mode="after")
    def _one_precision(self) -> Self:
        if self.fp16.enabled and self.bf16.enabled:
            raise ValueError("fp16 and bf16 cannot both be enabled; enable one")
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters and activations."""
        return torch.float16 if self.fp16.enabled else torch.bfloat16 if self.bf16.enabled else torch.float32

    @property
    def communication_dtype(self) -> torch.dtype:
        """The dtype in which gradients travel."""
        return DTYPES[self.communication_data_type] if self.communication_data_type else self.dtype

    @property
    def accumulator_dtype(self) -> torch.dtype:
        """The dtype in which gradients are kept between micro-steps."""
        return DTYPES[self.data_types.grad_accum_dtype or "fp32"]


def load(config: dict[str, Any] | str | Path) -> Config:
    """Read a configuration from a dict or a JSON file.

    Raises:
        ConfigError: the file is missing or not JSON, a key is unknown or a value is invalid; one line for each error.
    """
    raw = config if isinstance(config, dict) else _read(Path(config))
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join([*_key_faults(raw, Config, ""), *value_faults(error)])) from None


def accumulation_steps(config: Config, world: int) -> int:
    """Micro-steps per step, from DeepSpeed's batch sizes: batch = micro-batch per rank * micro-steps * ranks.

    Raises:
        ConfigError: neither batch size is given, or the equation does not hold.
    """
    batch, micro, steps = (
        config.train_batch_size,
        config.train_micro_batch_size_per_gpu,
        config.gradient_accumulation_steps,
    )
    if batch is None and micro is None:
        raise ConfigError("give train_batch_size or train_micro_batch_size_per_gpu; the config has neither")
    if steps is None:
        per_step = (micro or 0) * world
        steps = batch // per_step if batch and per_step else 1
    if micro is None:
        assert batch is not None
        micro = batch // (world * steps)
    if batch is not None and (batch != micro * steps * world or steps == 0):
        raise ConfigError(_unequal(config, world))
    return steps


def _unequal(config: Config, world: int) -> str:
    """The batch that is not a product, or no multiple of one, with the values that were given."""
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = {name: value for name in names if (value := getattr(config, name)) is not None} | {"world size": world}
    factors, product = " * ".join(f"{name} {value}" for name, value in given.items()), math.prod(given.values())
    relation, advice = "is no multiple of", "change one of them"
    if len(given) == 3:
        relation, advice = "is not", "change one of them, or leave one out"
    equals = f" = {product}" if len(given) > 1 else ""
    return f"train_batch_size {config.train_batch_size} {relation} {factors}{equals}; {advice}"


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no configuration file {str(path)!r}; give a dict or the path of a JSON file"
        ) from None
    except OSError as error:
        raise ConfigError(f"the configuration file {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise ConfigError(f"{str(path)!r} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{str(path)!r} must hold a JSON object, not {type(raw).__name__}")
    return raw


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate keys."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is there twice")
        found[key] = value
    return found


#: The sections by path; those of optimizer.params depend on the type.
SECTIONS: dict[str, type[BaseModel]] = {
    "fp16": Fp16,
    "bf16": Bf16,
    "zero_optimization": Zero,
    "zero_optimization.offload_optimizer": OffloadOptimizer,
    "zero_optimization.offload_param": OffloadParam,
    "data_types": DataTypes,
    "optimizer": OptimizerConfig,
}


def _params(type_: object) -> type[Section] | None:
    """The section of ``optimizer.params`` for this ``optimizer.type``; None if the type is unknown."""
    rule = rules.find(type_)
    return rule.params if rule else None


def _key_faults(raw: dict[str, Any], model: type[BaseModel], section: str) -> Iterator[str]:
    """Unknown keys and keys not honoured, of one section and the sections in it."""
    known, refused = set(model.model_fields), NOT_HONOURED.get(section, frozenset())
    for key, value in raw.items():
        path = f"{section}.{key}" if section else key
        inner = _params(raw.get("type")) if path == "optimizer.params" else SECTIONS.get(path)
        if key in refused:
            yield f"{path}: DeepSpeed has this key, this engine does not honour it; take it out"
        elif key not in known:
            yield unknown_key(path, sorted(known), difflib.get_close_matches(key, known | refused, n=1))
        elif inner is not None and isinstance(value, dict):
            yield from _key_faults(value, inner, path)


def unknown_key(path: str, known: Sequence[str], near: Sequence[str]) -> str:
    """The error of an unknown key, with the nearest name if there is one."""
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{path}: unknown key{hint} (known: {', '.join(known)})"


def value_faults(error: ValidationError) -> Iterator[str]:
    """Invalid values. ``_key_faults`` reports invalid keys, with more detail."""
    for detail in error.errors():
        where, given = ".".join(map(str, detail["loc"])) or "config", detail["input"]
        if given == "auto":
            yield f"{where}: 'auto' is for a framework to fill in before the engine is built; give a value"
        elif detail["type"] != "extra_forbidden":
            shown = f", got {given!r}" if not isinstance(given, dict | BaseModel) else ""
            yield f"{where}: {detail['msg'].removeprefix('Value error, ')}{shown}"
