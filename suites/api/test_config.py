"""Configurations: a valid one is read as written, and an invalid one is one clear error."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import zerobench
from zerobench.engine.config.not_honoured import NOT_HONOURED
from zerobench.engine.config.schema import Config, accumulation_steps, load
from zerobench.engine.rules import RULES

_RIGHT = {"train_batch_size": 2, "bf16": {"enabled": True}, "optimizer": {"type": "SGD", "params": {"lr": 0.5}}}


def _at(path: str, value: Any, type_: str = "Adam") -> dict[str, Any]:
    """A configuration with this value at ``section.key``, its optimizer of this type."""
    config: dict[str, Any] = {}
    *sections, key = path.split(".")
    inner = config
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = value
    if "optimizer" in sections and key != "type":
        config["optimizer"]["type"] = type_
    return config


def _error(config: Any) -> str:
    """The one line of the error."""
    with pytest.raises(zerobench.ConfigError) as refused:
        load(config)
    [line] = str(refused.value).splitlines()
    return line


def test_file(tmp_path: Path) -> None:
    """A JSON file is the same as its dict, by its name and by its path."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_RIGHT), encoding="utf-8")
    assert load(path) == load(str(path)) == load(_RIGHT)
    engine, *_ = zerobench.initialize(nn.Linear(1, 1), path)
    assert engine.config == load(_RIGHT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no configuration file '{}'; give a dict or the path of a JSON file"),
        (b"", "'{}' is not JSON: Expecting value: line 1 column 1"),
        (b"train_batch_size: 2", "'{}' is not JSON: Expecting value: line 1 column 1"),
        (b'{"train_batch_size": 2,}', "'{}' is not JSON: "),
        (b"\xff\xfe\x00", "'{}' is not JSON: "),
        (b"[2]", "'{}' must hold a JSON object, not list"),
        (b'{"bf16": {}, "bf16": {"enabled": true}}', "'{}' is not JSON: key 'bf16' is there twice"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, content: bytes | None, message: str) -> None:
    """Missing, not JSON, not text, not an object, or with a duplicate key."""
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    assert _error(path).startswith(message.format(path))


def test_directory_for_a_file(tmp_path: Path) -> None:
    """A path that exists and cannot be read."""
    assert _error(tmp_path) == f"the configuration file '{tmp_path}' cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("config", "world", "steps"),
    [
        ({"train_micro_batch_size_per_gpu": 3}, 4, 1),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5}, 4, 5),
        ({"train_batch_size": 8}, 4, 1),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2}, 4, 3),
        ({"train_batch_size": 24, "gradient_accumulation_steps": 3}, 4, 3),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 4, 3),
    ],
)
def test_batch_sizes(config: dict[str, Any], world: int, steps: int) -> None:
    """The missing value of the batch triple is derived."""
    assert accumulation_steps(load(config), world) == steps


@pytest.mark.parametrize(
    ("batch", "micro", "steps", "world", "wrong"),
    [
        (6, None, None, 4, "is no multiple of world size 4"),
        (2, None, None, 4, "is no multiple of world size 4"),
        (8, 3, None, 2, "is no multiple of train_micro_batch_size_per_gpu 3 * world size 2 = 6"),
        (2, 4, None, 1, "is no multiple of train_micro_batch_size_per_gpu 4 * world size 1 = 4"),
        (8, None, 3, 1, "is no multiple of gradient_accumulation_steps 3 * world size 1 = 3"),
        (16, 2, 2, 2, "is not train_micro_batch_size_per_gpu 2 * gradient_accumulation_steps 2 * world size 2 = 8"),
    ],
)
def test_batch_sizes_that_do_not_multiply_out(
    batch: int, micro: int | None, steps: int | None, world: int, wrong: str
) -> None:
    """If the world size does not divide the batch, or a triple contradicts itself, the error names what was given."""
    config = Config(train_batch_size=batch, train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=steps)
    with pytest.raises(zerobench.ConfigError) as refused:
        accumulation_steps(config, world)
    advice = "change one of them, or leave one out" if micro and steps else "change one of them"
    assert str(refused.value) == f"train_batch_size {batch} {wrong}; {advice}"


@pytest.mark.parametrize("config", [{}, {"gradient_accumulation_steps": 2}])
def test_no_batch_size(config: dict[str, Any]) -> None:
    """Neither of the two batch sizes."""
    with pytest.raises(zerobench.ConfigError, match="give train_batch_size or train_micro_batch_size_per_gpu; the con"):
        zerobench.initialize(nn.Linear(1, 1), {"optimizer": {"type": "SGD"}, **config})


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("train_batchsize", "train_batch_size"),
        ("schedular", "scheduler"),  # the loader then refuses it
        ("fp16.enable", "enabled"),
        ("bf16.enabld", "enabled"),
        ("data_types.grad_accum_type", "grad_accum_dtype"),
        ("zero_optimization.reduce_bucket", "reduce_bucket_size"),
        ("zero_optimization.stage3_max_live_params", "stage3_max_live_parameters"),
        ("optimizer.parms", "params"),
        ("optimizer.params.weight_deacy", "weight_decay"),
    ],
)
def test_unknown_keys(path: str, near: str) -> None:
    """The nearest key of its section is suggested."""
    assert _error(_at(path, 1)).startswith(f"{path}: unknown key; did you mean '{near}'? (known: ")


def test_unknown_key_like_no_other() -> None:
    """If no key is near, the error lists all keys."""
    assert _error({"data_types": {"x": 1}}) == "data_types.x: unknown key (known: grad_accum_dtype)"


@pytest.mark.parametrize("section", NOT_HONOURED)
def test_keys_of_deepspeed_that_are_refused(section: str) -> None:
    """If a key of DeepSpeed's is not honoured, the error says so; no key is both honoured and refused."""
    for key in NOT_HONOURED[section]:
        path = f"{section}.{key}" if section else key
        assert _error(_at(path, 1)) == f"{path}: DeepSpeed has this key, this engine does not honour it; take it out"


#: For every key, values of a wrong type and out of its range.
_WRONG: dict[str, tuple[Any, ...]] = {
    "train_batch_size": (0, 1.5, "many"),
    "train_micro_batch_size_per_gpu": (-1, "many"),
    "gradient_accumulation_steps": (0, [2]),
    "managed_gradient_accumulation": ("maybe", 2),
    "gradient_clipping": (-1.0, float("nan"), float("inf"), "on"),
    "fp16.enabled": ("maybe", 2),
    "fp16.loss_scale": (-1.0, float("nan"), float("inf"), "dynamic"),
    "fp16.initial_scale_power": (-1, 127, 1.5),
    "fp16.loss_scale_window": (0, 0.5),
    "fp16.hysteresis": (0, "two"),
    "fp16.consecutive_hysteresis": ("maybe",),
    "fp16.min_loss_scale": (0.0, float("inf"), "one"),
    "bf16.enabled": ("maybe", None),
    "communication_data_type": ("fp8", 16),
    "data_types.grad_accum_dtype": ("fp64", True),
    "optimizer.type": ("Lamb", 5),
    "optimizer.params.lr": (-1.0, float("nan"), float("inf"), "fast"),
    "optimizer.params.betas": (0.9, [0.9], [1.0, 0.999], [0.9, -0.1], [0.9, float("nan")]),
    "optimizer.params.eps": (-1e-8, float("inf"), "small"),
    "optimizer.params.weight_decay": (-0.1, float("inf"), "none"),
    "optimizer.params.adam_w_mode": ("maybe",),
    "optimizer.params.momentum": (-0.1, float("inf"), "some"),
    "optimizer.params.lr_decay": (-0.1, float("inf"), "some"),
    "optimizer.params.alpha": (-0.1, float("inf"), "some"),
    "optimizer.params.rho": (-0.1, float("inf"), "some"),
    "optimizer.params.momentum_decay": (-0.1, float("inf"), "some"),
    "optimizer.params.centered": ("maybe",),
    "optimizer.params.decoupled_weight_decay": ("maybe",),
    "zero_optimization.stage": (-1, 4, "three"),
    "zero_optimization.overlap_comm": ("maybe",),
    "zero_optimization.reduce_bucket_size": (0, 0.5),
    "zero_optimization.allgather_bucket_size": (0, "all"),
    "zero_optimization.stage3_prefetch_bucket_size": (-1, "many"),
    "zero_optimization.stage3_param_persistence_threshold": (-1, "many"),
    "zero_optimization.stage3_max_live_parameters": (-1, 1.5),
    "zero_optimization.sub_group_size": (0, "many"),
    "zero_optimization.chunk_size": (0, 16, 48, "small"),
    "zero_optimization.reduction_schedule": ("never", 1),
}


def _keys(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{above}{key}.")
        else:
            yield above + key


def test_every_key_is_given_wrong_values() -> None:
    """The table has every key but those of offload, which test_offload.py has."""
    params = dict.fromkeys(key for rule in RULES for key in rule.params.model_fields)
    every = _keys(Config().model_dump() | {"optimizer": {"type": None, "params": params}})
    assert {key for key in every if ".offload_" not in key} == set(_WRONG)


@pytest.mark.parametrize("path", _WRONG)
def test_wrong_values(path: str) -> None:
    """If a value has the wrong type or is out of range, the error has the key and the value, for each optimizer."""
    section, _, key = path.rpartition(".")
    types = [rule.types[0] for rule in RULES if key in rule.params.model_fields or section != "optimizer.params"]
    for type_, value in itertools.product(types, _WRONG[path]):
        said = _error(_at(path, value, type_))
        assert said.startswith(path), said
        assert "got " in said, said


@pytest.mark.parametrize("section", ["fp16", "bf16", "data_types", "zero_optimization", "optimizer"])
def test_sections_that_are_none(section: str) -> None:
    """A value in place of a section."""
    assert _error({section: 3}).startswith(f"{section}: Input should be a valid dictionary")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "config: fp16 and bf16 cannot both be enabled; "),
        (
            {"zero_optimization": {"stage": 2, "reduction_schedule": "boundary"}},
            "zero_optimization: reduction_schedule 'boundary' keeps whole gradients between micro-steps, which stage 2",
        ),
        ({"optimizer": {"params": {"lr": 1.0}}}, "optimizer.type: Field required"),
    ],
)
def test_values_that_do_not_fit_together(config: dict[str, Any], message: str) -> None:
    """Values that exclude each other, and one without the one it needs."""
    assert _error(config).startswith(message)
