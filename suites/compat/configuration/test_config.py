"""The configuration: every key of DeepSpeed's is honoured, without effect, or refused; ``auto`` and the defaults."""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from zerobench.compat.config import Settings, resolve
from zerobench.compat.config.keys import HONOURED, REFUSED, REMOVED, WITHOUT_EFFECT
from zerobench.engine.config.not_honoured import NOT_HONOURED
from zerobench.engine.config.schema import SECTIONS, Config
from zerobench.engine.errors import ConfigError
from zerobench.suites.compat import oracle
from zerobench.suites.project.docs.pages import read

_LISTS = (HONOURED, WITHOUT_EFFECT, REMOVED, REFUSED)
_BATCH = {"train_batch_size": 4}


def _of_engine() -> set[str]:
    sections: dict[str, Any] = {"": Config, **SECTIONS}
    return {f"{path}.{key}".lstrip(".") for path, section in sections.items() for key in section.model_fields}


def _deepspeeds() -> Iterator[str]:
    for section, keys in NOT_HONOURED.items():
        yield from (f"{section}.{key}".lstrip(".") for key in keys)


def test_each_key_is_in_one_list() -> None:
    """DeepSpeed's keys that the engine itself does not take are in exactly one list, and those it takes in none."""
    assert {key: sum(key in each for each in _LISTS) for key in _deepspeeds()} == dict.fromkeys(_deepspeeds(), 1)
    assert not _of_engine() & {key for each in _LISTS for key in each}


def _keys_of_deepspeed() -> set[str]:
    from deepspeed.runtime import precision_config
    from deepspeed.runtime.zero import config, offload_config

    sections = {
        "zero_optimization": config.DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
        "fp16": precision_config.DeepSpeedFP16Config,
        "bf16": precision_config.DeepSpeedBF16Config,
    }
    return {
        f"{path}.{field.alias or name}"
        for path, model in sections.items()
        for name, field in model.model_fields.items()
    }


@oracle.NEEDS_DEEPSPEED
def test_keys_of_the_installed_deepspeed() -> None:
    """Each key of the sections that DeepSpeed checks is in a list or in the engine's schema."""
    known = _of_engine() | {key for each in _LISTS for key in each}
    assert oracle.ask(_keys_of_deepspeed) - known == set()


def test_the_page_has_the_lists() -> None:
    """The reference page has each key with its reason."""
    page = read("docs/reference/drop-in.md")
    for key, reason in {**HONOURED, **WITHOUT_EFFECT, **REMOVED}.items():
        assert f"| `{key}` | {reason} |" in page
    for key, (neutral, reason) in REFUSED.items():
        assert f"| `{key}` | {'' if neutral is None else f'`{json.dumps(neutral)}`'} | {reason} |" in page


@pytest.mark.parametrize("key", sorted(WITHOUT_EFFECT))
def test_without_effect(key: str) -> None:
    """The engine gets the same configuration with and without the key, and the report names it."""
    optimizer = {"optimizer": {"type": "AdamW", "params": {}}}
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    plain: dict[str, Any] = {**_BATCH, **optimizer, "zero_optimization": zero, "bf16": {"enabled": True}}
    given = json.loads(json.dumps(plain))
    section: Any = given
    *path, name = key.split(".")
    for part in path:
        section = section.setdefault(part, {})
    section[name] = {} if key == "checkpoint" else 1  # of this section a key is checked
    found = resolve(given)
    assert found.engine == resolve(plain).engine
    assert found.without_effect == {key: WITHOUT_EFFECT[key]}


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_refused(key: str) -> None:
    """Another value than the neutral one is an error with the reason; the neutral one is taken."""
    neutral, reason = REFUSED[key]
    for value, fits in ((neutral, True), ({"enabled": True} if neutral is None else 7, False)):
        given: dict[str, Any] = {**_BATCH, "optimizer": {"type": "Adagrad", "params": {}}}
        section = given
        *path, name = key.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
        if fits:
            assert key not in str(resolve(given).engine)
        else:
            with pytest.raises(ConfigError) as caught:
                resolve(given)
            assert f"{key} = {value!r} is refused: {reason}" in str(caught.value)


@pytest.mark.parametrize("key", sorted(REMOVED))
@pytest.mark.parametrize("value", [False, {"enabled": False}, None, "auto", {"enabled": "auto"}])
def test_removed(key: str, value: Any) -> None:
    """It is an error at every value, as in DeepSpeed."""
    *path, name = key.split(".")
    given = {**_BATCH, **({path[0]: {name: value}} if path else {name: value})}
    with pytest.raises(ConfigError, match=f"{key} is refused at every value, DeepSpeed 0.19.8 has removed it: "):
        resolve(given)


class _WithHidden(nn.Module):
    config = Namespace(hidden_size=32)


_ARGS = Namespace(
    per_device_train_batch_size=3,
    gradient_accumulation_steps=5,
    max_grad_norm=0.5,
    learning_rate=1e-4,
    adam_beta1=0.8,
    adam_beta2=0.99,
    adam_epsilon=1e-6,
    weight_decay=0.1,
    warmup_steps=7,
    max_steps=70,
    bf16=True,
    fp16=False,
)


def _auto() -> dict[str, Any]:
    schedule = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    top = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return {
        **dict.fromkeys(top, "auto"),
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "scheduler": {"type": "WarmupDecayLR", "params": dict.fromkeys(schedule, "auto")},
        "zero_optimization": {"stage": 3, **dict.fromkeys(sizes, "auto"), "stage3_max_live_parameters": "auto"},
    }


def test_auto() -> None:
    """Hugging Face's rules, from the model and the arguments."""
    found = resolve(_auto(), _WithHidden(), _ARGS)
    assert found.raw["scheduler"]["params"] == {
        "warmup_min_lr": 0,
        "warmup_max_lr": 1e-4,
        "warmup_num_steps": 7,
        "total_num_steps": 70,
    }
    assert found.engine == {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 5,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-4, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1},
        },
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 1024,
            "stage3_prefetch_bucket_size": 921,
            "stage3_param_persistence_threshold": 320,
            "overlap_comm": True,
            "reduction_schedule": "micro_step",
        },
    }


def test_auto_without_a_value() -> None:
    """Keys that neither the model nor an argument gives are one error that names each."""
    with pytest.raises(
        ConfigError, match=r"scheduler\.params\.total_num_steps.*train_micro_batch_size_per_gpu: 'auto'"
    ):
        resolve(_auto())


def test_defaults() -> None:
    """DeepSpeed's: it clips to 1 and overlaps at stage 3 only; sections that a stage ignores are taken out."""
    offload = {"offload_optimizer": {"device": "cpu", "buffer_count": 4}, "offload_param": {"device": "cpu"}}
    found = resolve({**_BATCH, "zero_optimization": {"stage": 2, **offload}})
    assert found.engine["gradient_clipping"] == 1.0
    assert found.engine["zero_optimization"]["overlap_comm"] is False
    assert found.engine["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert "zero_optimization.offload_param" in found.without_effect
    lion = resolve({**_BATCH, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}})
    assert lion.engine["optimizer"]["params"]["betas"] == [0.9, 0.999]


@pytest.mark.parametrize(
    ("type_", "given", "expected"), [("Adam", {}, 0.01), ("AdamW", {"weight_decay": 0.0}, 0.0), ("SGD", {}, None)]
)
def test_weight_decay_of_torch(type_: str, given: dict[str, float], expected: float | None) -> None:
    """With torch_adam, an AdamW has torch's weight decay if the configuration has none."""
    found = resolve({**_BATCH, "optimizer": {"type": type_, "params": {"torch_adam": True, **given}}})
    assert found.engine["optimizer"]["params"].get("weight_decay") == expected


_TEXT = '{"train_batch_size": 4, # the seed has a comment\n // and so\n "gradient_clipping": 0.5, /* or */ }'


@pytest.mark.parametrize("form", ["dict", "file", "base64"])
def test_forms(form: str, tmp_path: Any) -> None:
    """A dict, a file with the comments that DeepSpeed's reader allows, and JSON in base64."""
    path = tmp_path / "ds_config.json"
    path.write_text(_TEXT)
    plain = {"train_batch_size": 4, "gradient_clipping": 0.5}
    given: Any = {"dict": plain, "file": str(path), "base64": base64.urlsafe_b64encode(json.dumps(plain).encode())}
    config = given[form].decode() if form == "base64" else given[form]
    found: Settings = resolve(config)
    assert (found.engine["train_batch_size"], found.engine["gradient_clipping"]) == (4, 0.5)


_WRONG: list[tuple[Any, str]] = [
    ({"gradient_cliping": 1, **_BATCH}, r"gradient_cliping: unknown key; did you mean 'gradient_clipping'\?"),
    ({"fp16": {"enable": True}, **_BATCH}, r"fp16\.enable: unknown key; did you mean 'enabled'\?"),
    ("nosuch.json", r"there is no configuration file 'nosuch\.json'"),
    ({"bfloat16": {}, "bf16": {}, **_BATCH}, "bfloat16 and bf16, which are one setting"),
    ({"zero_optimization": {"stage": 4}, **_BATCH}, r"zero_optimization\.stage"),
    ({"zero_optimization": {"stage": "three"}, **_BATCH}, r"zero_optimization\.stage: .* got 'three'"),
    ({"zero_optimization": 3, **_BATCH}, "zero_optimization is a section, .* got 3"),
    ({"optimizer": "Adam", **_BATCH}, "optimizer is a section, .* got 'Adam'"),
    ({"wandb": True, **_BATCH}, "wandb is a section, .* got True"),
    (
        {"zero_optimization": {"stage": 2, "cpu_offload": "false"}, **_BATCH},
        "cpu_offload is true or false, got 'false'",
    ),
    ({"wall_clock_breakdown": "flase", **_BATCH}, "wall_clock_breakdown: .* got 'flase'"),
    ({"steps_per_print": "ten", **_BATCH}, "steps_per_print: .* got 'ten'"),
    ({"flops_profiler": {"profile_step": "two"}, **_BATCH}, r"flops_profiler\.profile_step: .* got 'two'"),
    ({"tensorboard": {"output_pth": "x"}, **_BATCH}, r"tensorboard\.output_pth: .* did you mean 'output_path'\?"),
    ({"scheduler": {"typ": "WarmupLR"}, **_BATCH}, r"scheduler\.typ: .* did you mean 'type'\?"),
    ({"activation_checkpointing": {"profil": 1}, **_BATCH}, r"activation_checkpointing\.profil: .* mean 'profile'\?"),
]


@pytest.mark.parametrize(("config", "message"), _WRONG, ids=[message for _, message in _WRONG])
def test_wrong(config: Any, message: str) -> None:
    """One clear error."""
    with pytest.raises(ConfigError, match=message):
        resolve(config)


_FORMS: dict[str, Any] = {
    "zero_optimization": {"stage": "3", "stage3_gather_16bit_weights_on_model_save": "false"},
    "wall_clock_breakdown": "false",
    "steps_per_print": "10",
    "flops_profiler": {"enabled": "true", "profile_step": 2.0},
    "activation_checkpointing": {"number_checkpoints": "4", "remarks": "DeepSpeed ignores this"},
    **dict.fromkeys(("fp16", "bf16", "tensorboard", "comms_logger", "scheduler", "optimizer", "dump_state")),
}


def test_values_in_another_form() -> None:
    """Numbers and flags as strings have their types, as pydantic gives them to DeepSpeed; null is no section."""
    found = resolve({**_BATCH, **_FORMS})
    assert found.engine["zero_optimization"]["stage"] == 3
    assert found.raw == {
        **_BATCH,
        "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False},
        "wall_clock_breakdown": False,
        "steps_per_print": 10,
        "flops_profiler": {"enabled": True, "profile_step": 2},
        "activation_checkpointing": {"number_checkpoints": 4, "remarks": "DeepSpeed ignores this"},
    }


#: Zeros of published configurations, with the names of the keys that then have no effect.
_ZEROS: dict[str, Any] = {
    "zero_optimization.sub_group_size": {"zero_optimization": {"stage": 3, "sub_group_size": 0}},
    "fp16.min_loss_scale": {"fp16": {"enabled": True, "loss_scale": 512, "min_loss_scale": 0}},
    "fp16.loss_scale_window": {"bf16": {"enabled": True}, "fp16": {"enabled": False, "loss_scale_window": 0}},
}


@pytest.mark.parametrize("key", _ZEROS)
def test_zeros(key: str) -> None:
    """DeepSpeed takes a zero that it does not read, or that changes no result; a number of checkpoints may be false."""
    found = resolve({**_BATCH, **_ZEROS[key], "activation_checkpointing": {"number_checkpoints": False}})
    assert key in found.without_effect
    assert found.raw["activation_checkpointing"] == {"number_checkpoints": None}


@pytest.mark.parametrize("key", ["min_loss_scale", "loss_scale_window", "hysteresis"])
def test_zeros_of_a_dynamic_scale(key: str) -> None:
    """A dynamic loss scale reads them, so they are errors, of DeepSpeed too but for ``hysteresis``."""
    with pytest.raises(ConfigError, match=rf"fp16\.{key}: .* greater than 0"):
        resolve({**_BATCH, "fp16": {"enabled": True, key: 0}})


@pytest.mark.parametrize("name", ["optimizer", "scheduler"])
def test_a_type_that_is_null(name: str) -> None:
    """It is no optimizer and no schedule, as in DeepSpeed: scripts take them out so for a reference model."""
    found = resolve({**_BATCH, name: {"type": None, "params": {}}})
    assert name not in found.engine
    assert found.raw == _BATCH


@pytest.mark.parametrize("size", [0, 1])
def test_one_rank_of_tensor_parallelism(size: int) -> None:
    """Size 1, as OpenRLHF configures it, and 0 shard nothing; two ranks would."""
    section = {"autotp_size": size, "tp_overlap_comm": False}
    assert "tensor_parallel" not in resolve({**_BATCH, "tensor_parallel": section}).engine
    with pytest.raises(ConfigError, match="tensor_parallel"):
        resolve({**_BATCH, "tensor_parallel": {"autotp_size": 2}})


def test_unknown_names_that_resemble_nothing() -> None:
    """At the top level DeepSpeed ignores them; here they are listed among the keys without effect."""
    assert list(resolve({**_BATCH, "experiment_42": 1}).without_effect) == ["experiment_42"]


#: The sections in which DeepSpeed 0.19.8 takes no other names, of those that can be given alone.
_STRICT = {
    *("fp16", "bf16", "zero_optimization", "comms_logger", "tensorboard", "csv_monitor", "wandb", "comet"),
    *("hybrid_engine", "compile", "tensor_parallel", "weight_quantization"),
}
_IGNORING = {
    *("optimizer", "scheduler", "flops_profiler", "data_types", "torch_autocast", "activation_checkpointing", "aio"),
    *("checkpoint", "timers", "data_efficiency", "autotuning", "datastates_ckpt", "pipeline", "expert_parallel"),
}
_WITH_TYPES = {"optimizer": {"type": "Adam", "params": {}}, "scheduler": {"type": "WarmupLR", "params": {}}}


def _refuses_a_remark(section: str) -> bool:
    """Whether DeepSpeed has an error for a name that it does not know."""
    from deepspeed import DeepSpeedConfig

    try:
        DeepSpeedConfig({**_BATCH, section: {**_WITH_TYPES.get(section, {}), "remark_42": 1}})
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("section", sorted(_IGNORING))
def test_unknown_names_in_sections(section: str) -> None:
    """A name that resembles no key is ignored where DeepSpeed ignores it, and listed."""
    given = {**_WITH_TYPES.get(section, {}), "remark_42": 1}
    found = resolve({**_BATCH, section: given})
    assert {section, f"{section}.remark_42"} & found.without_effect.keys() or section in REFUSED


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
@pytest.mark.parametrize("section", sorted(_STRICT | _IGNORING))
def test_deepspeed_ignores_them(section: str) -> None:
    """In these sections and in no others."""
    assert oracle.ask(_refuses_a_remark, section) == (section in _STRICT)


def test_older_forms() -> None:
    """bfloat16, cpu_offload, a flag for the stage, and names without stage3_."""
    assert resolve({**_BATCH, "bfloat16": {"enabled": True}}).engine["bf16"] == {"enabled": True}
    assert resolve({**_BATCH, "zero_optimization": True}).engine["zero_optimization"]["stage"] == 1
    older = {"stage": 3, "cpu_offload": True, "cpu_offload_use_pin_memory": False, "prefetch_bucket_size": 5}
    zero = resolve({**_BATCH, "zero_optimization": older}).engine["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert zero["stage3_prefetch_bucket_size"] == 5
