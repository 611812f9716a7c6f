"""The environment of a run: what must be known to read its numbers. No host name, no user, no path."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import zerobench
from zerobench.machine.gpu import gpus, lines

_PACKAGE = Path(__file__).parent
_CPU_INFO = Path("/proc/cpuinfo")

#: Environment variables that change what is measured, by the start of their name ...
_VARIABLES = (
    "OMP_", "MKL_", "KMP_", "ZEROBENCH_", "NCCL_", "GLOO_", "CUDA_", "CUBLAS_", "TORCH_", "PYTORCH_", "DS_",
    "PYTHONHASHSEED", "THP_", "MALLOC_", "GLIBC_TUNABLES",
)  # fmt: skip
#: ... of which these name a machine; a value that holds a path is left out by its slash.
_PRIVATE = ("NCCL_COMM_ID", "NCCL_HOSTID")


def describe_environment() -> dict[str, Any]:
    """Versions, hardware, commit and settings as plain JSON values; sizes in bytes, None if not to be had.

    ``load`` is how many processes wanted a core in the last minute; a quiet machine has less than a run's ranks.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "zerobench": zerobench.__version__,
        "git": _git(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "deepspeed": _version("deepspeed"),
        "platform": " ".join([platform.system(), platform.machine(), *filter(None, platform.libc_ver())]),
        "cpu": cpu_model(),
        "cpu_capability": cpu_capability(),
        "cpu_mhz": _cpu_mhz(),
        "cpu_throttled": _cpu_throttled(),
        "load": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "scheduling": _scheduling(),
        "kernels": zerobench.describe_kernels(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": gpus() if torch.cuda.is_available() else None,
        "variables": _variables(),
    }


def rank_environment(group: dist.ProcessGroup) -> dict[str, Any]:
    """The environment as a rank sees it: its number of threads, not the parent's; the number of ranks it works with."""
    world = dist.get_world_size()
    return describe_environment() | {"world": world, "backend": str(dist.get_backend_config())}


def cpu_model() -> str:
    """The CPU's name, as the system has it."""
    return next(iter(_of_each_core("model name")), platform.machine())


def cpu_capability() -> str:
    """The instructions that torch computes with; AMX, which it does not name, changes the bits of low precision."""
    capability: str = torch.backends.cpu.get_cpu_capability()
    flags = " ".join(_of_each_core("flags")).split()
    return f"{capability} with AMX" if "amx_tile" in flags else capability


def _cpu_mhz() -> list[int] | None:
    """The slowest and the fastest core's clock just now, in MHz."""
    clocks = [int(float(clock)) for clock in _of_each_core("cpu MHz")]
    return [min(clocks), max(clocks)] if clocks else None


def _of_each_core(name: str) -> list[str]:
    """What the system says of every core under a name; empty if it says nothing of that kind."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def _cpu_throttled() -> int | None:
    """How often a core was throttled for its temperature since the machine started; None if nobody counts."""
    counts = list(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    return sum(int(count.read_text()) for count in counts) if counts else None


def _scheduling() -> str | None:
    """The policy under which this thread gets a core; None if the system tells no such policies apart."""
    if not hasattr(os, "sched_getscheduler"):
        return None
    names = {os.SCHED_OTHER: "default", os.SCHED_BATCH: "batch"}
    return names.get(os.sched_getscheduler(0), "another")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit and whether anything differs from it; None unless this very file is tracked where it lies.

    An installed package may well lie inside another project's checkout.
    """
    git = ("git", "-C", str(_PACKAGE))
    if _output(*git, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return {"commit": _output(*git, "rev-parse", "HEAD"), "dirty": bool(_output(*git, "status", "--porcelain"))}


def _output(*command: str) -> str | None:
    """What a command prints, None if there is no such command or it fails."""
    found = lines(*command)
    return None if found is None else "\n".join(found)


def _variables() -> dict[str, str]:
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    return {name: value for name, value in chosen.items() if "/" not in value and name not in _PRIVATE}
