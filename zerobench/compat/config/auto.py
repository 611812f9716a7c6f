"""``"auto"`` by the rules of Hugging Face, from the model and from the script's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerobench.compat.config.keys import REFUSED, REMOVED, WITHOUT_EFFECT
from zerobench.engine.errors import ConfigError

_AUTO = "auto"


def hidden_size(model: Any) -> int | None:
    """The hidden size that the model's Hugging Face configuration gives; the largest one if it has several."""
    for config in (getattr(model, "config", None), getattr(getattr(model, "config", None), "text_config", None)):
        if getattr(config, "hidden_size", None) is not None:
            return int(config.hidden_size)  # type: ignore[union-attr]
        if getattr(config, "hidden_sizes", None):
            return int(max(config.hidden_sizes))  # type: ignore[union-attr]
    return None


def resolve_auto(raw: dict[str, Any], model: Any, args: Any) -> None:
    """Replace each ``"auto"`` in ``raw`` by its value, or take it out if DeepSpeed's default holds.

    Raises:
        ConfigError: the value depends on the model or on an argument that neither gives.
    """
    _top(raw, args)
    for section, flag in (("fp16", "fp16"), ("bf16", "bf16"), ("bfloat16", "bf16")):
        _fill(raw.get(section), "enabled", bool(getattr(args, flag, False)))
    optimizer = (raw.get("optimizer") or {}).get("params")
    _each(optimizer, _OPTIMIZER, args)
    _each((raw.get("scheduler") or {}).get("params"), _scheduler(optimizer or {}), args)
    _zero(raw.get("zero_optimization"), hidden_size(model))
    left = sorted(_remaining(raw, ""))
    if left:
        raise ConfigError(
            f"{', '.join(left)}: 'auto' has no value here; give one, or an argument of the script that Hugging Face's "
            "Trainer has"
        )


def _top(raw: dict[str, Any], args: Any) -> None:
    _fill(raw, "train_micro_batch_size_per_gpu", getattr(args, "per_device_train_batch_size", _AUTO))
    _fill(raw, "gradient_accumulation_steps", getattr(args, "gradient_accumulation_steps", 1))
    _fill(raw, "gradient_clipping", getattr(args, "max_grad_norm", 1.0))
    if raw.get("train_batch_size") == _AUTO:
        del raw["train_batch_size"]  # the other two give it


def _fill(section: Any, key: str, value: Any) -> None:
    if isinstance(section, dict) and section.get(key) == _AUTO:
        section[key] = value


#: By key: the value from the arguments; None if the default holds.
_Rules = dict[str, Callable[[Any], Any]]
_OPTIMIZER: _Rules = {
    "lr": lambda args: _given(args, "learning_rate", "lr"),
    "betas": lambda args: _pair(_given(args, "adam_beta1"), _given(args, "adam_beta2")),
    "eps": lambda args: _given(args, "adam_epsilon"),
    "weight_decay": lambda args: _given(args, "weight_decay"),
}


def _scheduler(optimizer: dict[str, Any]) -> _Rules:
    return {
        "warmup_min_lr": lambda args: 0,
        "warmup_max_lr": lambda args: optimizer.get("lr", _AUTO),
        "warmup_num_steps": lambda args: _given(args, "warmup_steps", "num_warmup_steps") or _AUTO,
        "total_num_steps": lambda args: _given(args, "max_steps", "max_train_steps") or _AUTO,
    }


def _each(params: Any, rules: _Rules, args: Any) -> None:
    for key, rule in rules.items():
        if isinstance(params, dict) and params.get(key) == _AUTO:
            value = rule(args)
            if value is None:
                del params[key]
            else:
                params[key] = value


def _given(args: Any, *names: str) -> Any:
    """The first of these arguments that the script has."""
    return next((value for name in names if (value := getattr(args, name, None)) is not None), None)


def _pair(first: Any, second: Any) -> list[Any] | None:
    return None if first is None or second is None else [first, second]


def _zero(zero: Any, hidden: int | None) -> None:
    """The bucket sizes from the hidden size; every other key, and those without a hidden size, have their default."""
    if not isinstance(zero, dict):
        return
    if hidden is not None:
        _fill(zero, "reduce_bucket_size", hidden * hidden)
        _fill(zero, "stage3_prefetch_bucket_size", int(0.9 * hidden * hidden))
        _fill(zero, "stage3_param_persistence_threshold", 10 * hidden)
    for section in (zero, zero.get("offload_optimizer"), zero.get("offload_param")):
        if isinstance(section, dict):
            for key in [key for key, value in section.items() if value == _AUTO]:
                if f"zero_optimization.{key}" not in REMOVED:
                    del section[key]


def _remaining(values: dict[str, Any], above: str) -> list[str]:
    found = []
    for key, value in values.items():
        if any(above + key in each for each in (WITHOUT_EFFECT, REFUSED, REMOVED)):
            continue  # "auto" stands for the value that changes nothing, or the key has an error of its own
        if value == _AUTO:
            found.append(above + key)
        elif isinstance(value, dict):
            found += _remaining(value, f"{above}{key}.")
    return found
