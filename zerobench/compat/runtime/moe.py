"""``deepspeed.moe``: parameter groups of a model without experts; experts themselves are refused."""

from __future__ import annotations

from typing import Any

from torch import nn


def has_moe_layers(m: nn.Module) -> tuple[bool, int]:
    """Whether the model has experts, and how many: none."""
    return False, 0


def is_moe_param(param: Any) -> bool:
    """False: no parameter belongs to an expert."""
    return False


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    """Whether a group is of experts."""
    return bool(param_group.get("moe", False))


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: dict[str, Any] | list[dict[str, Any]] | tuple[dict[str, Any], ...],
    max_group_size: float = 178956971,
) -> list[dict[str, Any]]:
    """The groups as a list: without experts there is nothing to split."""
    groups = [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    return [{**group, "params": list(group["params"])} for group in groups]


def configure_moe_param_groups(model_parameters: list[Any]) -> list[Any]:
    """The parameters or groups as they are."""
    return model_parameters
