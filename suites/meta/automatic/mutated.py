"""Ranks whose engine is a mutant: each loads the engine from its files, except for one module with an edit."""

from __future__ import annotations

import importlib
import os
import resource
import sys
import threading
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Literal, TypeVar

import torch.distributed as dist

import zerobench
from zerobench.ranks import Pending, Pool, preload
from zerobench.suites.meta.automatic.enumeration import Mutation

T = TypeVar("T")

#: Seconds after which a Scenario of a mutant hangs; without a mutation the longest takes a tenth of it.
TIME_LIMIT = 20.0
#: The same for the engine as it is, which may be traced, on a busy machine.
_PATIENT = 200.0
#: Bytes of memory, and of one file, that a rank may have: many times as many as it needs.
_MEMORY, _FILE = 8 << 30, 1 << 28
_WORLD = 4
_FOLDER = str(Path(zerobench.__file__).parent / "engine")
#: The modules that the ranks start with; none of them imports the engine.
PRELOADED = (
    "pydantic",
    "hypothesis",
    "xxhash",
    "zerobench.ranks.forkserver",
    "zerobench.oracles.questions",
    "zerobench.suites.support.trials",
    "zerobench.suites.accounting.ledger",
    __name__,
)
#: The implementation of the engine's operations: native kernels, or their definitions in torch.
Kernels = Literal["native", "torch"]
#: Lines by file, from the engine's folder.
Reach = dict[str, frozenset[int]]


class MutatedPool(Pool):
    """Four ranks that import the engine anew, with this mutation if one is given; so do the ranks after a fault."""

    def __init__(self, mutation: Mutation | None, kernels: Kernels = "native") -> None:
        super().__init__(_WORLD)
        self.mutation, self.kernels = mutation, kernels

    def _start(self) -> None:
        super()._start()
        self._load()

    def _load(self) -> None:
        edit = (self.mutation.module, self.mutation.source()) if self.mutation else ("", b"")
        self.submit(load_engine, self.kernels, *edit).result()

    def submit(
        self, task: Callable[..., T], *args: Any, world: int | None = None, timeout: float = TIME_LIMIT
    ) -> Pending[T]:
        limit = min(timeout, TIME_LIMIT) if self.mutation else _PATIENT
        return super().submit(task, *args, world=world, timeout=limit)


class TracingPool(MutatedPool):
    """Ranks with the engine as it is, which record its lines as they run, its import's first."""

    def _load(self) -> None:
        self.submit(_trace).result()
        super()._load()

    def taken(self) -> Reach:
        """The lines that any rank has run since the last call."""
        lines: dict[str, set[int]] = {}
        for rank in self.run(_take):
            for file, line in rank:
                lines.setdefault(file, set()).add(line)
        return {file: frozenset(each) for file, each in lines.items()}


def preload_ranks() -> None:
    """Let the ranks start with every module that they need, except the engine and the modules that import it."""
    preload(*PRELOADED)


def load_engine(group: dist.ProcessGroup, kernels: Kernels, module: str, source: bytes) -> None:
    """One rank's part: import the engine, with ``source`` as the text of ``module`` if a name is given."""
    os.environ["ZEROBENCH_KERNELS"] = kernels
    early = [name for name in sys.modules if name.startswith("zerobench.engine")]
    assert not early, f"this rank has imported {early[0]} before the mutant"
    _keep_within_limits()
    if module:
        sys.meta_path.insert(0, _Finder(module, source))
    importlib.import_module("zerobench.subjects.reference")


def _keep_within_limits() -> None:
    """A mutant that never stops growing must not fill the machine."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))


class _Finder(MetaPathFinder):
    """Finds the mutated module in its place, with the mutant's text."""

    def __init__(self, module: str, source: bytes) -> None:
        self._module, self._source = module, source

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._source)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


_ran: set[tuple[str, int]] = set()


def _trace(group: dist.ProcessGroup) -> None:
    threading.settrace(_entered)
    sys.settrace(_entered)


def _entered(frame: FrameType, event: str, argument: Any) -> Any:
    return _passed if frame.f_code.co_filename.startswith(_FOLDER) else None


def _passed(frame: FrameType, event: str, argument: Any) -> Any:
    _ran.add((frame.f_code.co_filename, frame.f_lineno))
    return _passed


def _take(group: dist.ProcessGroup) -> list[tuple[str, int]]:
    """The lines that ran on this rank since the last call."""
    taken = [(file[len(_FOLDER) + 1 :], line) for file, line in _ran]
    _ran.clear()
    return taken
