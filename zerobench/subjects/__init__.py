"""The subjects by name; the name of your own is ``package.module:Class`` or ``file.py:Class``."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zerobench.errors import UsageError, unknown

if TYPE_CHECKING:
    from zerobench.subject import Subject

#: The module and class of each subject; imported only if requested.
REGISTRY: dict[str, str] = {
    "reference": "zerobench.subjects.reference:Reference",
    "torch-ddp": "zerobench.subjects.torch_ddp:TorchDdp",
    "torch-ddp-bf16-hook": "zerobench.subjects.variants:DdpBf16Hook",
    "torch-ddp-copies": "zerobench.subjects.variants:DdpCopies",
    "torch-ddp-fp16-hook": "zerobench.subjects.variants:DdpFp16Hook",
    "torch-ddp-find-unused": "zerobench.subjects.variants:DdpFindUnused",
    "torch-ddp-static-graph": "zerobench.subjects.variants:DdpStaticGraph",
    "torch-fsdp1": "zerobench.subjects.torch_fsdp1:TorchFsdp1",
    "torch-fsdp1-flat": "zerobench.subjects.torch_fsdp1_flat:TorchFsdp1Flat",
    "torch-fsdp1-hybrid": "zerobench.subjects.variants:Fsdp1Hybrid",
    "torch-fsdp1-offload": "zerobench.subjects.variants:Fsdp1Offload",
    "torch-fsdp1-prefetch": "zerobench.subjects.variants:Fsdp1Prefetch",
    "torch-fsdp2": "zerobench.subjects.torch_fsdp2:TorchFsdp2",
    "torch-fsdp2-hybrid": "zerobench.subjects.variants:Fsdp2Hybrid",
    "torch-fsdp2-hybrid-deferred": "zerobench.subjects.variants:Fsdp2HybridDeferred",
    "torch-fsdp2-offload": "zerobench.subjects.variants:Fsdp2Offload",
    "torch-fsdp2-reshard-to-two": "zerobench.subjects.variants:Fsdp2ReshardToTwo",
    "torch-replicate": "zerobench.subjects.torch_replicate:TorchReplicate",
    "torch-zero1": "zerobench.subjects.torch_zero1:TorchZero1",
    "torch-zero1-views": "zerobench.subjects.variants:Zero1Views",
    "deepspeed": "zerobench.subjects.deepspeed:DeepSpeed",
    "deepspeed-at-boundary": "zerobench.subjects.variants:DeepSpeedAtBoundary",
    "deepspeed-predivide": "zerobench.subjects.deepspeed_settings:DeepSpeedPredivide",
    "deepspeed-round-robin": "zerobench.subjects.deepspeed_settings:DeepSpeedRoundRobin",
    "deepspeed-cpu-adam": "zerobench.subjects.deepspeed_cpu_adam:DeepSpeedCpuAdam",
    "deepspeed-cpu-lion": "zerobench.subjects.deepspeed_cpu_adam:DeepSpeedCpuLion",
    "deepspeed-zero-to-fp32": "zerobench.subjects.deepspeed_consolidated:DeepSpeedConsolidated",
    "deepspeed-universal": "zerobench.subjects.deepspeed_universal:DeepSpeedUniversal",
    "accelerate-ddp": "zerobench.subjects.hf_accelerate:AccelerateDdp",
    "accelerate-fsdp2": "zerobench.subjects.accelerate_fsdp2:AccelerateFsdp2",
    "fairscale-oss": "zerobench.subjects.fairscale_oss:FairscaleOss",
    "compute-only": "zerobench.subjects.plain:ComputeOnly",
}


def load(name: str) -> type[Subject]:
    """The class of a subject, by its name here, as ``package.module:Class`` or as ``folder/file.py:Class``.

    Raises:
        UsageError: if there is no such name, module, file or class, or if the class is not a Subject or not finished.
    """
    from zerobench.subject import Subject  # here: the names are known without torch

    checked_name(name)
    module, _, attribute = REGISTRY.get(name, name).rpartition(":")
    try:
        found = getattr(_imported(module), attribute)
    except Exception as error:  # importing a user's module may raise anything
        told = f"({type(error).__name__}: {error}{_line_of(error)}); name an importable package.module:Class or a file"
        raise UsageError(f"cannot load the subject {name!r} {told}") from error
    if not (isinstance(found, type) and issubclass(found, Subject)):
        raise UsageError(f"{name!r} is not a subject; give a class derived from zerobench.subject.Subject")
    if name not in REGISTRY and (flaw := _flaw(found)):
        raise UsageError(f"the subject {name!r} {flaw}")
    return found


def checked_name(name: str) -> str:
    """The name, which is known here or has the form of one's own.

    Raises:
        UsageError: it is not.
    """
    if ":" not in name and name not in REGISTRY:
        raise unknown("subject", name, [*REGISTRY, "package.module:Class", "file.py:Class"])
    return name


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def _flaw(subject: type[Subject]) -> str:
    """What is wrong with the class itself, before an object of it is made; empty if nothing is."""
    from zerobench.subject import Policies

    if lacking := sorted(subject.__abstractmethods__):
        return f"lacks {', '.join(each + '()' for each in lacking)}; see docs/how-to/add-a-subject.md"
    if not isinstance(getattr(subject, "name", None), str):
        return "has no name; give the class a string `name`"
    if not _takes_one(subject.unsupported):
        return "has an unsupported() that is no class method; put @classmethod above it"
    if not isinstance(subject.policies, Policies):
        return f"has policies of type {type(subject.policies).__name__}; give zerobench.subject.Policies(...)"
    for each in ("settings", "savings", "norm_types", "scalers"):
        if isinstance(getattr(subject, each), str):
            return (
                f"has {each} {getattr(subject, each)!r}; give a tuple of strings, such as ({getattr(subject, each)!r},)"
            )
    return ""


def _imported(module: str) -> ModuleType:
    """The module of a name or of a file; the file's folder joins the search path, as that of a script does."""
    if not module.endswith(".py"):
        return importlib.import_module(module)
    if not (file := Path(module).resolve()).is_file():
        raise ImportError("there is no such file")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    found = importlib.import_module(file.stem)
    if found.__file__ is None or Path(found.__file__).resolve() != file:
        raise ImportError(f"another module has the name {file.stem!r}; rename the file")
    return found


def _line_of(error: Exception) -> str:
    """The place of an import's failure: the last line of the imported module itself, if the import got there."""
    passed = (__file__, importlib.__file__, "<frozen")
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(passed)]
    own = [each for each in frames if each.filename == frames[0].filename]
    return f", {own[-1].filename}, line {own[-1].lineno}" if own else ""
