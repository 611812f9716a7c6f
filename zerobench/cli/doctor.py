"""Doctor: what this machine has for zerobench, what it lacks, and what to do about that."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist

import zerobench
from zerobench.machine.environment import cpu_capability, cpu_model
from zerobench.results import Json

#: Distributions whose versions matter: what zerobench stands on, and the peers that it measures if they are installed.
_DISTRIBUTIONS = ("torch", "numpy", "pydantic", "deepspeed", "hypothesis", "pytest")
_COMPILERS = ("c++", "g++", "clang++", "nvcc")


def examine() -> Json:
    """Look at everything; builds the kernels that are not built yet.

    Returns:
        Rows of ``devices``, ``compilers``, ``kernels``, ``backends`` and ``versions`` (name to words; None: not there),
        and ``problems``: sentences that each say what is missing and what to do. Usable if there is none.
    """
    problems: list[str] = []
    return {
        "devices": _devices(),
        "compilers": {name: _compiler(name) for name in _COMPILERS},
        "kernels": _kernels(problems),
        "backends": _backends(problems),
        "versions": _versions(),
        "problems": problems,
    }


def render(findings: Json) -> str:
    """The findings as aligned text."""
    parts = []
    for title, rows in findings.items():
        if title != "problems":
            width = max(map(len, rows), default=0)
            lines = [f"  {name:{width}}  {'-' if words is None else words}" for name, words in rows.items()]
            parts.append("\n".join([title, *lines]))
    problems = findings["problems"]
    parts.append("\n".join(["problems", *(f"  {problem}" for problem in problems)]) if problems else "usable")
    return "\n\n".join(parts)


def _devices() -> dict[str, str | None]:
    gpus = {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    return {"cpu": f"{cpu_model()}, {cores}, {cpu_capability()}", **(gpus or {"cuda": None})}


def _compiler(name: str) -> str | None:
    path = shutil.which(name)
    if path is None:
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return f"{path}: {_version_line(done.stdout)}"


def _version_line(text: str) -> str:
    """The line of a compiler's own words that holds its version: nvcc's is not the first."""
    lines = text.splitlines() or [""]
    return next((line for line in lines if "release" in line), lines[0])


def _kernels(problems: list[str]) -> dict[str, str | None]:
    rows: dict[str, str | None] = {}
    try:
        rows["implementation"] = zerobench.describe_kernels()["implementation"]
        for built in zerobench.prepare_kernels():
            rows[built.title] = built.library
    except zerobench.KernelError as error:
        problems.append(str(error))
    return rows


def _backends(problems: list[str]) -> dict[str, str | None]:
    nccl: Any = torch.cuda.nccl.version() if dist.is_nccl_available() and torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    if not dist.is_gloo_available():
        problems.append("torch has no gloo backend, which ranks on a CPU need: install an official build of torch")
    if torch.cuda.is_available() and nccl is None:
        problems.append("torch has no NCCL, which ranks on GPUs need: install an official CUDA build of torch")
    return {
        "gloo": "available" if dist.is_gloo_available() else None,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"zerobench": zerobench.__version__, "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "cuda": torch.version.cuda}
