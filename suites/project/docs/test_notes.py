"""The CPU's table of kernels/NOTES.md is what the published report says."""

from __future__ import annotations

from zerobench.results import Json
from zerobench.suites.project.docs.pages import read
from zerobench.suites.project.docs.published import read_published
from zerobench.suites.project.reports.page import markdown_tables


def of_kernels() -> list[list[str]]:
    """Of each kernel and size: ms, GB/s, and how many times as fast as a copy, torch and DeepSpeed it is."""
    found: dict[tuple[str, int], dict[str, Json]] = {}
    for each in read_published("cpu-kernels")["kernels"]:
        found.setdefault((each["kernel"], each["elements"]), {})[each["against"]] = each
    lines = []
    for (kernel, elements), rivals in found.items():
        own = rivals.get("copy")
        if own is None:  # the update from files, which docs/notes/offload.md has
            continue
        times = [f"{rivals[name]['ratio']:.2f}" if name in rivals else "" for name in ("copy", "torch", "deepspeed")]
        took = f"{own['seconds'] * 1e3:.1f}", f"{own['bandwidth'] / 1e9:.1f}"
        lines.append([kernel, f"{elements >> 20}M", *took, *times])
    return lines


def test_kernels() -> None:
    """Every number."""
    [_, _, *shown] = markdown_tables(read("kernels/NOTES.md"))["CPU"]
    assert shown[: len(of_kernels())] == of_kernels()
