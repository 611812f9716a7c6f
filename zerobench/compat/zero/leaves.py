"""Leaf modules: DeepSpeed gathers them as a whole. Here ranks agree on every gather, so a mark changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

#: The attribute of a leaf module.
_MARK = "_z3_leaf"


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Mark the modules of these classes (types, or their names), and return them.

    Raises:
        ValueError: the model has none.
    """
    return _marked(_of_classes(model, leaf_module_classes, raise_if_not_found), True)


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[Any], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Take the marks from the modules of these classes, and return them.

    Raises:
        ValueError: the model has none.
    """
    return _marked(_of_classes(model, leaf_module_classes, raise_if_not_found), False)


def set_z3_leaf_modules_by_name(
    model: nn.Module, module_names: Iterable[str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Mark the modules of these names, and return them.

    Raises:
        ValueError: the model has none.
    """
    wanted = list(module_names)
    found = [each for name, each in model.named_modules() if name in wanted]
    return _marked(_found(found, wanted, raise_if_not_found), True)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module, module_name_suffixes: Iterable[str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Mark the modules whose names end with one of these, and return them.

    Raises:
        ValueError: the model has none.
    """
    wanted = tuple(module_name_suffixes)
    found = [each for name, each in model.named_modules() if name.endswith(wanted)]
    return _marked(_found(found, wanted, raise_if_not_found), True)


def _of_classes(model: nn.Module, classes: Iterable[Any], raise_if_not_found: bool) -> list[nn.Module]:
    wanted = list(classes)
    found = [each for each in model.modules() if type(each) in wanted or type(each).__name__ in wanted]
    return _found(found, wanted, raise_if_not_found)


def _found(modules: list[nn.Module], wanted: Iterable[Any], raise_if_not_found: bool) -> list[nn.Module]:
    if not modules and raise_if_not_found:
        raise ValueError(f"the model has none of the modules {list(wanted)}; give classes or names of its modules")
    return modules


def _marked(modules: list[nn.Module], flag: bool) -> list[nn.Module]:
    for module in modules:
        setattr(module, _MARK, flag)
    return modules


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Mark this module, or take its mark."""
    _marked([model], flag)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The marked modules."""
    return [each for each in model.modules() if z3_leaf_module(each)]


def z3_leaf_module(model: nn.Module) -> bool:
    """Whether the module is marked."""
    return bool(getattr(model, _MARK, False))


def z3_leaf_parameter(model: nn.Parameter) -> bool:
    """False: no parameter is gathered by a leaf module."""
    return False
