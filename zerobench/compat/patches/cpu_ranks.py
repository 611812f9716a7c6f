"""CPU ranks in accelerate and transformers, which otherwise run DeepSpeed on accelerators only.

Four places are changed when their module is imported, and only there:

- accelerate takes CPU ranks for single processes if DeepSpeed is in use: it is told gloo and several processes.
- transformers refuses bf16 without a GPU: a CPU computes in bf16, too.
- accelerate's ``cpu=True`` turns DeepSpeed off in silence: with DeepSpeed it is an error.
- transformers' ``use_cpu=True`` keeps DeepSpeed, whose device it does not choose: on a GPU it is an error.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from zerobench.errors import UsageError


def _accelerate_state(state: Any) -> None:
    chosen = state.PartialState._prepare_backend

    def prepare(self: Any, cpu: bool, *args: Any, **kwargs: Any) -> Any:
        backend, kind = chosen(self, cpu, *args, **kwargs)
        if _uses_deepspeed() and backend is None and "LOCAL_RANK" in os.environ:
            return "gloo", state.DistributedType.MULTI_CPU
        return backend, kind

    begin = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        kinds = state.DistributedType
        if _uses_deepspeed() and self.distributed_type in (kinds.MULTI_CPU, kinds.NO):
            raise UsageError(
                "Accelerator(cpu=True) and the variable ACCELERATE_USE_CPU turn DeepSpeed off in silence; take them "
                "out: without a GPU the job trains on the CPU, and beside one if DS_ACCELERATOR is cpu"
            )

    state.PartialState._prepare_backend = prepare
    state.AcceleratorState.__init__ = init


def _uses_deepspeed() -> bool:
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def _training_args(module: Any) -> None:
    begin = module.TrainingArguments.__post_init__
    on_gpu = module.is_torch_bf16_gpu_available

    def post_init(self: Any) -> None:
        from zerobench.compat.accelerator.accelerator import local_device

        if self.deepspeed and self.use_cpu and local_device().type != "cpu":
            raise UsageError("use_cpu=True does not keep DeepSpeed off the GPU; set the variable DS_ACCELERATOR to cpu")
        begin(self)

    def in_bf16() -> bool:
        import torch

        return not torch.cuda.is_available() or bool(on_gpu())

    module.TrainingArguments.__post_init__ = post_init
    module.is_torch_bf16_gpu_available = in_bf16


_PATCHES: dict[str, Callable[[Any], None]] = {
    "accelerate.state": _accelerate_state,
    "transformers.training_args": _training_args,
}


class PatchesOnImport(importlib.abc.MetaPathFinder):
    """Finds the modules of the patches, and patches each after its import.

    Args:
        others: by module, patches beside those for CPU ranks.
    """

    def __init__(self, others: Mapping[str, Callable[[Any], None]] = MappingProxyType({})) -> None:
        self._patches = {**_PATCHES, **others}
        self._waiting = set(self._patches)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        self._waiting.discard(fullname)
        spec = importlib.util.find_spec(fullname)  # by the other finders
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, self._patches[fullname])
        return spec


class _Patching(importlib.abc.Loader):
    """A module's loader, followed by its patch."""

    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self._loader, self._patch = loader, patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)
