"""Activation: the stand-in package ``deepspeed`` first on the path of this process and of its children."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from zerobench.errors import UsageError

#: The folder of the stand-in and of its metadata.
SITE = Path(__file__).with_name("site")
#: DeepSpeed's version whose surface this is; a local version compares as not older.
VERSION = "0.19.8+zerobench"


def activate() -> None:
    """Make ``import deepspeed`` find the stand-in, here and in child processes, and tell accelerate of CPU ranks.

    Raises:
        UsageError: another package ``deepspeed`` has been imported.
    """
    loaded = sys.modules.get("deepspeed")
    if loaded is not None and SITE not in Path(loaded.__file__ or "").parents:
        raise UsageError(f"{loaded.__file__} has been imported already; start the script by zerobench launch alone")
    if str(SITE) not in sys.path:
        sys.path.insert(0, str(SITE))
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *([others] if others else [])])
        sys.meta_path.insert(0, _CpuRanks())


class _CpuRanks(importlib.abc.MetaPathFinder):
    """Lets accelerate run DeepSpeed on CPU ranks, which it otherwise takes for single processes.

    It changes one method of ``accelerate.state`` when that module is imported.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "accelerate.state":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader)
        return spec


class _Patching(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _announce_cpu_ranks(module)


def _announce_cpu_ranks(state: Any) -> None:
    """accelerate's backend on CPU ranks with DeepSpeed is gloo, and there are several processes."""
    chosen = state.PartialState._prepare_backend

    def prepare(self: Any, cpu: bool, *args: Any, **kwargs: Any) -> Any:
        deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
        if deepspeed and cpu:
            raise UsageError(
                "use_cpu=True (or ACCELERATE_USE_CPU) turns DeepSpeed off in accelerate, in silence; take it out: "
                "zerobench launch trains on the CPU where there is no GPU"
            )
        backend, kind = chosen(self, cpu, *args, **kwargs)
        if deepspeed and backend is None and int(os.environ.get("LOCAL_RANK", "-1")) != -1:
            return "gloo", state.DistributedType.MULTI_CPU
        return backend, kind

    state.PartialState._prepare_backend = prepare
