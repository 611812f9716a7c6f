"""The tables of kernels/NOTES.md have the numbers of the published reports."""

from __future__ import annotations

from zerobench.results import Json
from zerobench.suites.project.docs.pages import read
from zerobench.suites.project.docs.published import read_published
from zerobench.suites.project.reports.page import markdown_tables


def _by_kernel(report: str) -> dict[tuple[str, int], dict[str, Json]]:
    """A published report's results by kernel and size, and then by rival."""
    found: dict[tuple[str, int], dict[str, Json]] = {}
    for each in read_published(report)["kernels"]:
        found.setdefault((each["kernel"], each["elements"]), {})[each["against"]] = each
    return found


def of_kernels() -> list[list[str]]:
    """Of each kernel and size: ms, GB/s, and its speed as a multiple of a copy's, torch's and DeepSpeed's."""
    lines = []
    for (kernel, elements), rivals in _by_kernel("cpu-kernels").items():
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


def of_gpu_kernels(report: str = "h200/kernels") -> list[list[str]]:
    """Of each kernel and size: microseconds, GB/s, and its speed as a multiple of a copy's and of torch's."""
    lines = []
    for (kernel, elements), rivals in _by_kernel(report).items():
        own = rivals["copy"]
        took = f"{own['seconds'] * 1e6:,.1f}", f"{own['bandwidth'] / 1e9:,.0f}"
        times = [f"{rivals[name]['ratio']:.2f}" for name in ("copy", "torch")]
        lines.append([kernel, f"{elements >> 20:,}M", *took, *times])
    return lines


def test_kernels_on_a_gpu() -> None:
    """Every number, and each kernel reaches the predicted share of a copy's bandwidth."""
    [_, _, *shown] = markdown_tables(read("kernels/NOTES.md"))["H200"]
    assert shown[: len(of_gpu_kernels())] == of_gpu_kernels()
    assert all(float(line[4]) >= 0.9 for line in of_gpu_kernels())


def test_small_and_large_kernels_on_a_gpu() -> None:
    """Every number of the sizes that the other table has not, and what the page says about them."""
    [_, _, *shown] = markdown_tables(read("kernels/NOTES.md"))["H200, small and large"]
    measured = of_gpu_kernels("h200/kernel-sizes")
    assert shown == [line for line in measured if line[1] in ("1M", "2,048M")]
    assert all(float(line[4]) >= 0.94 for line in measured if line[1] == "2,048M")
    assert {line[0] for line in measured if float(line[4]) < 0.9} == _SLOW_ON_LITTLE


_SLOW_ON_LITTLE = {"pack", "unpack", "pack to bf16", "chunk_sumsq bf16"}
