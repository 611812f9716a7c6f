"""DeepSpeed's other names: a script may import each; a class that is made and a function that is called refuse."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from abc import ABCMeta
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

#: The public names of DeepSpeed 0.19.8, by module, with its constants.
NAMES = Path(__file__).with_name("names.json")


@functools.cache
def recorded() -> dict[str, dict[str, Any]]:
    """By module: the kind of each name, or a list of its constant."""
    return dict(json.loads(NAMES.read_text(encoding="utf-8")))


def add_names() -> None:
    """Give each loaded module of the stand-in the names that it lacks, unless it finds names by itself."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "deepspeed" and not hasattr(module, "__getattr__"):
            setattr(module, "__getattr__", names_of(name))  # noqa: B010


def find_modules() -> None:
    """Let this process import the modules that the stand-in lacks."""
    if not any(isinstance(each, FindsUnoffered) for each in sys.meta_path):
        sys.meta_path.append(FindsUnoffered())


def names_of(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of the stand-in, for the names that it lacks."""
    return functools.partial(_name, module)


@functools.cache
def _name(module: str, name: str) -> Any:
    kind = recorded().get(module, {}).get(name)
    if kind is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    if kind == "module":
        return importlib.import_module(f"{module}.{name}")
    return kind[0] if isinstance(kind, list) else _MAKERS[kind](module, name)


class FindsUnoffered(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes after all other finders: modules of DeepSpeed that the stand-in lacks have names that refuse."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module, if DeepSpeed has it.

        Raises:
            ModuleNotFoundError: a module below ``deepspeed`` that DeepSpeed 0.19.8 does not have either.
        """
        if not fullname.startswith("deepspeed."):
            return None
        module, _, name = fullname.rpartition(".")
        if name == "__main__" and module in recorded():
            return importlib.machinery.ModuleSpec(fullname, self)
        if fullname not in recorded():
            raise ModuleNotFoundError(f"{fullname} is not offered: {_STANDS_IN}", name=fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)  # so that modules below come here, too

    def get_code(self, fullname: str) -> CodeType:
        """The program of ``python -m``: one line on stderr, and the exit code 1."""
        module = fullname.removesuffix(".__main__")
        reason = _PROGRAMS.get(module, _STANDS_IN)
        return compile(f"raise SystemExit({f'python -m {module} is not offered: {reason}'!r})", fullname, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names, as they are asked for."""
        setattr(module, "__getattr__", names_of(module.__name__))  # noqa: B010


_STANDS_IN = (
    "zerobench's reference engine stands in for deepspeed, without this name; docs/reference/drop-in.md lists its names"
)

#: By module, the reason that its program is not needed.
_PROGRAMS = {
    "deepspeed.checkpoint.ds_to_universal": "a checkpoint loads at any stage and on any number of ranks as it is; load "
    "the checkpoint itself, with or without load_universal"
}


def _refuse(full: str) -> NoReturn:
    raise NotImplementedError(f"{full} is not offered: {_STANDS_IN}")


def _function(module: str, name: str) -> Any:
    def refusing(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"{module}.{name}")

    refusing.__name__, refusing.__module__ = name, module
    return refusing


class _Refusing(ABCMeta):
    """The class of a class that refuses: its own methods, such as ``apply`` of a Function, are the same error.

    It is an AttributeError, so that ``hasattr()`` is False. A script may give its own class an abstract one beside it.
    """

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}", name=name)
        refused = next(each for each in cls.__mro__ if "_refuses" in vars(each))
        raise AttributeError(f"{refused.__module__}.{refused.__name__}.{name} is not offered: {_STANDS_IN}", name=name)


def _class(module: str, name: str) -> Any:
    def refusing(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"{module}.{name}")

    given = {"__module__": module, "__doc__": "Refuses; no object is one.", "__init__": refusing, "_refuses": True}
    return _Refusing(name, (), given)


def _exception(module: str, name: str) -> Any:
    return type(name, (Exception,), {"__module__": module})


_MAKERS: dict[str, Callable[[str, str], Any]] = {"class": _class, "function": _function, "exception": _exception}
