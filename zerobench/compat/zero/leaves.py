"""Leaf modules: DeepSpeed gathers them as a whole. Here ranks agree on every gather, so a mark changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from zerobench.compat.errors import SettingsError

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
    model: nn.Module, module_names: Iterable[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules of these names, or take their marks. Returns them, and the names that no module has.

    Raises:
        ValueError: the model lacks one.
    """
    named = dict(model.named_modules())
    return _marked_by(
        {wanted: [named[wanted]] if wanted in named else [] for wanted in module_names}, flag, raise_if_not_found
    )


def set_z3_leaf_modules_by_suffix(
    model: nn.Module, module_name_suffixes: Iterable[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Mark the modules whose names end with one of these, or take their marks. Returns them, and unused suffixes.

    Raises:
        ValueError: a suffix is that of no module.
    """
    named = dict(model.named_modules())
    by_suffix = {
        suffix: [module for name, module in named.items() if name.endswith(suffix)] for suffix in module_name_suffixes
    }
    return _marked_by(by_suffix, flag, raise_if_not_found)


def _marked_by(
    by_wanted: dict[str, list[nn.Module]], flag: bool, raise_if_not_found: bool
) -> tuple[list[nn.Module], list[str]]:
    missing = [wanted for wanted, modules in by_wanted.items() if not modules]
    if missing and raise_if_not_found:
        raise ValueError(f"the model has no modules of the names {missing}; give names of its named_modules()")
    found = dict.fromkeys(module for modules in by_wanted.values() for module in modules)
    return _marked(list(found), flag), missing


def _of_classes(model: nn.Module, classes: Iterable[Any], raise_if_not_found: bool) -> list[nn.Module]:
    """The modules of these classes or of classes derived from them, and of classes of these names."""
    wanted = list(classes)
    if not all(isinstance(each, type | str) for each in wanted):
        raise SettingsError(f"leaf_module_classes must be classes or their names, got {wanted}")
    types = tuple(each for each in wanted if isinstance(each, type))
    names = {each for each in wanted if isinstance(each, str)}
    found: list[nn.Module] = []

    def collect(module: nn.Module) -> None:
        own = type(module)
        if isinstance(module, types) or names & {own.__name__, f"{own.__module__}.{own.__qualname__}"}:
            found.append(module)

    model.apply(collect)
    if not found and raise_if_not_found:
        raise ValueError(f"the model has none of the modules {wanted}; give classes of its modules or their names")
    return found


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
