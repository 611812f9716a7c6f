"""Leaf modules: DeepSpeed gathers them as a whole. Here ranks agree on every gather, so no module must be one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """The modules of these classes (types, or their names); nothing else changes.

    Raises:
        ValueError: the model has none.
    """
    wanted = list(leaf_module_classes)
    found = [each for each in model.modules() if type(each) in wanted or type(each).__name__ in wanted]
    return _found(found, wanted, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: nn.Module, module_names: Iterable[str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """The modules of these names; nothing else changes.

    Raises:
        ValueError: the model has none.
    """
    wanted = list(module_names)
    return _found([each for name, each in model.named_modules() if name in wanted], wanted, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module, module_name_suffixes: Iterable[str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """The modules whose names end with one of these; nothing else changes.

    Raises:
        ValueError: the model has none.
    """
    wanted = tuple(module_name_suffixes)
    return _found([each for name, each in model.named_modules() if name.endswith(wanted)], wanted, raise_if_not_found)


def _found(modules: list[nn.Module], wanted: Iterable[Any], raise_if_not_found: bool) -> list[nn.Module]:
    if not modules and raise_if_not_found:
        raise ValueError(f"the model has none of the modules {list(wanted)}; give classes or names of its modules")
    return modules


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """The same modules."""
    return set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found)


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Do nothing to this module."""


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """No module is one."""
    return []


def z3_leaf_module(model: nn.Module) -> bool:
    """False: no module is one."""
    return False


def z3_leaf_parameter(model: nn.Parameter) -> bool:
    """False: no parameter belongs to one."""
    return False
