"""Sections of DeepSpeed's configuration: their switches, the mistakes in those that a stage does not use, strings."""

from __future__ import annotations

from typing import Any

import pytest

from zerobench.compat.config import resolve
from zerobench.engine.errors import ConfigError

_BATCH = {"train_batch_size": 8}


@pytest.mark.parametrize(
    ("key", "on", "off"),
    [
        ("zero_optimization.zenflow", {"topk_ratio": 0.1}, None),
        ("zero_optimization.zenflow", {}, None),
        ("compile", {"deepcompile": True}, {"deepcompile": False, "offload_activation": True}),
        ("weight_quantization", {"quantized_initialization": {"num_bits": 8}}, {}),
    ],
)
def test_sections_with_another_switch(key: str, on: Any, off: Any) -> None:
    """DeepSpeed turns them on by another key than ``enabled``, or if they are given."""
    *path, name = key.split(".")
    for value in (on, off):
        given = {**_BATCH, **({path[0]: {name: value}} if path else {name: value})}
        if value is off:
            assert name not in str(resolve(given).engine)
        else:
            with pytest.raises(ConfigError, match=f"{key} = .* is refused"):
                resolve(given)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("name", ["offload_optimizer", "offload_param"])
def test_mistakes_in_offload(stage: int, name: str) -> None:
    """They are errors at every stage, also at those that do not use the section; the rest is taken at every stage."""
    for section in ("cpu", {"device": "gpu"}, {"device": "cpu", "devcie": "cpu"}, {"device": "cpu", "pin_memory": 7}):
        with pytest.raises(ConfigError, match=f"zero_optimization.{name}"):
            resolve({**_BATCH, "zero_optimization": {"stage": stage, name: section}})
    for fits in ({"device": "cpu", "nvme_path": "/nowhere"}, {"device": "nvme", "nvme_path": "/nowhere"}, {}, None):
        resolve({**_BATCH, "zero_optimization": {"stage": stage, name: fits}})


def test_strings_in_a_schedule() -> None:
    """Numbers and flags of a schedule may be strings, as those of the other sections."""
    texts = {"cycle_min_lr": "1e-3", "cycle_max_lr": ["0.01"], "cycle_first_step_size": "20", "cycle_momentum": "False"}
    numbers = {"cycle_min_lr": 1e-3, "cycle_max_lr": [0.01], "cycle_first_step_size": 20, "cycle_momentum": False}
    found = resolve({**_BATCH, "scheduler": {"type": "OneCycle", "params": {**texts, "warmup_type": "log"}}})
    assert found.section("scheduler")["params"] == {**numbers, "warmup_type": "log"}


@pytest.mark.parametrize("value", ["foo", 3, None])
def test_a_wrong_tag_validation(value: Any) -> None:
    """It is an error, although the key has no effect; the three values may be written in any case."""
    with pytest.raises(ConfigError, match=r"checkpoint\.tag_validation: Input should be 'Warn', 'Fail' or 'Ignore'"):
        resolve({**_BATCH, "checkpoint": {"tag_validation": value}})
    for fits in ("Warn", "FAIL", "ignore"):
        resolve({**_BATCH, "checkpoint": {"tag_validation": fits, "load_universal": False}})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dtype": "float32"}, r"torch_autocast\.dtype must be 'bfloat16', got 'float32'"),
        ({"dtype": "torch.float16"}, r"torch_autocast\.dtype = 'torch.float16' is refused: it needs a loss scale"),
        ({"lower_precision_safe_modules": ["torch.nn.Linaer"]}, r"safe_modules: there is no 'torch\.nn\.Linaer'; give"),
        ({"lower_precision_safe_modules": ["Linear"]}, r"safe_modules: there is no 'Linear'; give"),
        ({"lower_precision_safe_modules": ["no_such.Linear"]}, r"safe_modules: there is no 'no_such\.Linear'; give"),
    ],
)
def test_mistakes_in_autocast(keys: dict[str, Any], message: str) -> None:
    """They are errors if the section is enabled; what DeepSpeed takes is taken."""
    with pytest.raises(ConfigError, match=message):
        resolve({**_BATCH, "torch_autocast": {"enabled": True, **keys}})
    resolve({**_BATCH, "torch_autocast": {"enabled": False, **keys}})
    fits = {
        "dtype": "torch.bfloat16",
        "lower_precision_safe_modules": ["torch.nn.Linear", "torch.nn.modules.conv.Conv2d"],
    }
    resolve({**_BATCH, "torch_autocast": {"enabled": True, **fits}})
