"""The subjects by name; one of your own is named ``package.module:Class``."""

from __future__ import annotations

import importlib

from zerobench.errors import UsageError, unknown
from zerobench.subject import Subject

#: Where each subject's class is; imported only when asked for.
REGISTRY: dict[str, str] = {
    "reference": "zerobench.subjects.reference:Reference",
    "torch-ddp": "zerobench.subjects.torch_ddp:TorchDdp",
    "torch-fsdp2": "zerobench.subjects.torch_fsdp2:TorchFsdp2",
    "torch-zero1": "zerobench.subjects.torch_zero1:TorchZero1",
    "deepspeed": "zerobench.subjects.deepspeed:DeepSpeed",
    "compute-only": "zerobench.subjects.plain:ComputeOnly",
}


def load(name: str) -> type[Subject]:
    """The class of a subject, by its name here or as ``package.module:Class``.

    Raises:
        UsageError: no such name, module or class, or a class that is not a Subject.
    """
    if ":" not in name and name not in REGISTRY:
        raise unknown("subject", name, [*REGISTRY, "package.module:Class"])
    module, _, attribute = REGISTRY.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "name an importable package.module:Class"
        raise UsageError(f"cannot load the subject {name!r} ({error}); {hint}") from error
    if not (isinstance(found, type) and issubclass(found, Subject)):
        raise UsageError(f"{name!r} is not a subject; give a class derived from zerobench.subject.Subject")
    return found
