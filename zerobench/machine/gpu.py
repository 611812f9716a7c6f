"""GPUs as nvidia-smi sees them: what they are, and what may slow them down just now."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import torch

#: A GPU's clocks in MHz, temperature in Celsius, power in watts; nvidia-smi's names.
_STATE = ("clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw", "power.limit")
#: Why clocks are lower than they could be, as a bit mask; the name depends on the driver.
_THROTTLING = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
#: Where a launcher has the ranks meet.
_MEETING = ("MASTER_ADDR", "MASTER_PORT")


def gpus() -> dict[str, Any]:
    """Names, driver, CUDA, NCCL, clocks, throttling and other processes; None if nvidia-smi does not say."""
    nccl: Any = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()  # type: ignore[no-untyped-call]
    return {
        "names": [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())],
        "driver": next(iter(_query("driver_version") or []), None),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) or None,
        "state": {field: _query(field) for field in _STATE},
        "throttling": next((found for field in _THROTTLING if (found := _query(field)) is not None), None),
        "other_processes": _other_processes(),
    }


def _query(field: str) -> list[str] | None:
    """The field of each GPU."""
    return lines("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader")


def _other_processes() -> int | None:
    """How many processes that are not this one or one of its family hold memory on a GPU."""
    found = lines("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    return None if found is None else sum(pid.isdecimal() and not _is_family(int(pid)) for pid in found)


def _is_family(pid: int) -> bool:
    """Whether a process is of this one's process group, or a rank of the same launch: torchrun gives each a session."""
    try:
        return os.getpgid(pid) == os.getpgrp() or _meets_here(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:  # it has ended, or is another user's
        return False


def _meets_here(environment: bytes) -> bool:
    """Whether a process was told to meet other ranks where this one was."""
    told = [f"{name}={os.environ[name]}".encode() for name in _MEETING if name in os.environ]
    return len(told) == len(_MEETING) and {*told} <= {*environment.split(b"\0")}


def lines(*command: str) -> list[str] | None:
    """What a command prints; None if there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()
