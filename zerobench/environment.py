"""The environment of a run: what must be known to read its numbers. No host name, no user, no path."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zerobench

_PACKAGE = Path(__file__).parent
_CPU_INFO = Path("/proc/cpuinfo")

#: Environment variables that change what is measured, by the start of their name ...
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ZEROBENCH_", "NCCL_", "GLOO_", "CUDA_VISIBLE_DEVICES")
#: ... of which these name a machine; a value that holds a path is left out by its slash.
_PRIVATE = ("NCCL_COMM_ID", "NCCL_HOSTID")


def environment() -> dict[str, Any]:
    """Versions, hardware, commit and settings as plain JSON values; sizes in bytes, None where not to be had."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "zerobench": zerobench.__version__,
        "git": _git(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": " ".join([platform.system(), platform.machine(), *filter(None, platform.libc_ver())]),
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": zerobench.kernels(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": _gpu() if torch.cuda.is_available() else None,
        "variables": _variables(),
    }


def cpu_model() -> str:
    """The CPU's name, as the system has it."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpu() -> dict[str, Any]:
    nccl: Any = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()  # type: ignore[no-untyped-call]
    return {
        "names": [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())],
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) or None,
    }


def _git() -> dict[str, Any] | None:
    """Commit and whether anything differs from it; None unless this very file is tracked where it lies.

    An installed package may well lie inside another project's checkout.
    """
    git = ("git", "-C", str(_PACKAGE))
    if _output(*git, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return {"commit": _output(*git, "rev-parse", "HEAD"), "dirty": bool(_output(*git, "status", "--porcelain"))}


def _output(*command: str) -> str | None:
    """What a command prints, None where there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _variables() -> dict[str, str]:
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    return {name: value for name, value in chosen.items() if "/" not in value and name not in _PRIVATE}
