"""The tables of the configuration and of offload have every key, with its default; the example can be loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from zerobench.engine.config.schema import Config, load
from zerobench.engine.rules import RULES
from zerobench.suites.project.docs.pages import block, read

_PAGE = "docs/reference/configuration.md"
_OFFLOAD = ("zero_optimization.offload_optimizer.", "zero_optimization.offload_param.")


def _stated() -> Iterator[tuple[str, Any]]:
    """Every key of the page's first table and its default, None if the page states it in words.

    A key without a dot is in the section of the key before it in its row; one default stands for all keys of its row.
    """
    page, _, _ = read(_PAGE).partition("## Optimizers")
    for names, stated in re.findall(r"^\| (`.*?) \| (.*?) ?\| .* \|$", page, re.MULTILINE):
        section, keys = "", []
        for key in re.findall(r"`([\w.]+)`", names):
            section = key.rpartition(".")[0] or section
            keys.append(f"{section}.{key.rpartition('.')[2]}".lstrip("."))
        defaults = _values(stated)
        yield from zip(keys, defaults if len(defaults) > 1 else defaults * len(keys), strict=True)


def _values(stated: str) -> list[Any]:
    bare = re.sub(r" \(.*?\)", "", stated).replace("`", '"')
    try:
        return json.loads(f"[{bare}]") or [None]
    except json.JSONDecodeError:
        return [None]


def _flat(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _defaults() -> dict[str, Any]:
    optimizer = {"optimizer": {"type": None, "params": None}}  # the params have a table of their own
    return dict(_flat(Config().model_dump(mode="json") | optimizer))


def test_every_key_and_default() -> None:
    """The page has every key with the default that the code has; of the offload sections it has the device."""
    expected = {
        key: value for key, value in _defaults().items() if not key.startswith(_OFFLOAD) or key.endswith(".device")
    }
    stated = list(_stated())
    assert dict(stated) == expected
    assert len(stated) == len(expected), "a key is there twice"


def test_every_rule_and_default() -> None:
    """The page's table of optimizers has every type with its parameters and their defaults, and the class to pass."""
    page = read(_PAGE)
    _, _, table = page.partition("## Optimizers")
    stated = {}
    for types, classes, keys, defaults in re.findall(
        r"^\| (`.*?) \| (.*?) \| (.*?) \| (.*?) \| .* \|$", table, re.MULTILINE
    ):
        params = dict(zip(re.findall(r"`(\w+)`", keys), _values(defaults), strict=True))
        stated[tuple(re.findall(r"`(\w+)`", types))] = (re.findall(r"`([\w.]+)`", classes), params)
    assert stated == {
        rule.types: ([f"torch.optim.{each.__name__}" for each in rule.clients], rule.params().model_dump(mode="json"))
        for rule in RULES
    }


def test_what_words_say() -> None:
    """The defaults that the page states in words."""
    for section in ("fp16", "bf16"):
        config = Config.model_validate({section: {"enabled": True}})
        assert str(config.communication_dtype) == {"fp16": "torch.float16", "bf16": "torch.bfloat16"}[section]
        assert str(config.accumulator_dtype) == "torch.float32"


def test_every_key_of_offload() -> None:
    """The other page has every key of the offload sections."""
    rows = "".join(re.findall(r"^\| (`.*?) \|", read("docs/reference/offload.md"), re.MULTILINE))
    expected = {key.rpartition(".")[2] for key in _defaults() if key.startswith(_OFFLOAD)}
    assert expected <= set(re.findall(r"`(\w+)`", rows))


def test_example() -> None:
    """The engine takes the configuration of the page."""
    assert load(json.loads(block(_PAGE, "json"))).zero_optimization.stage == 3
