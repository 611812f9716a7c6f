"""The installed DeepSpeed as an oracle, in a process of its own: the process of the tests imports the stand-in."""

from __future__ import annotations

import functools
import importlib.machinery
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from zerobench.compat.activation import SITE

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def _without_stand_in(folders: list[str]) -> list[str]:
    return [folder for folder in folders if Path(folder) != SITE]


NEEDS_DEEPSPEED = pytest.mark.skipif(
    importlib.machinery.PathFinder.find_spec("deepspeed", _without_stand_in(sys.path)) is None,
    reason="needs DeepSpeed, the oracle: pip install 'zerobench[deepspeed]'",
)


def ask(question: Callable[_Given, _Answer], *args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
    """The answer of a function of a module, called where ``import deepspeed`` gives the installed DeepSpeed."""
    return _process().submit(question, *args, **kwargs).result()


def ask_anew(question: Callable[_Given, _Answer], *args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
    """The same in a new process: other questions import modules of DeepSpeed, and so add names to its packages."""
    with _new_process() as process:
        return process.submit(question, *args, **kwargs).result()


@functools.cache
def _process() -> ProcessPoolExecutor:
    return _new_process()


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    """No stand-in on the path, and no accelerator but the CPU."""
    sys.path[:] = _without_stand_in(sys.path)
    os.environ["PYTHONPATH"] = os.pathsep.join(_without_stand_in(os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ["DS_ACCELERATOR"] = "cpu"
