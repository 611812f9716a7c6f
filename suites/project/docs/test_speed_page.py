"""The tables of docs/notes/speed.md, and the report in the README, have the numbers of the published reports."""

from __future__ import annotations

import re
from collections import defaultdict

from zerobench.results import Json
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.suites.project.docs.pages import read
from zerobench.suites.project.docs.published import read_published
from zerobench.suites.project.reports.page import markdown_tables
from zerobench.suites.support.checkout import ROOT
from zerobench.verdict import RAN

_PAGE = read("docs/notes/speed.md")
_AIMS = {0: (1.15, 1.05), 1: (1.15, 1.05), 2: (1.15, 1.05), 3: (1.3, 1.12)}
#: torch's engine for a stage, and its name on the page.
_PEERS = {0: ("torch-ddp", "DDP"), 1: ("torch-zero1", "ZeroRedundancyOptimizer"), 3: ("torch-fsdp2", "FSDP2")}


def _met(value: float, aim: float, what: str) -> str:
    return f"{'met' if value <= aim else 'missed'}: {what}"


def of_aims() -> list[list[str]]:
    """Of each stage: the multiple of compute-only, its aim, and torch's engine beside it."""
    ratios = {
        (case["subject"], case["stage"]): case["time"]["ratio"] for case in read_published("cpu-two-cores")["cases"]
    }
    lines = []
    for stage, aim in _AIMS.items():
        ours = ratios["reference", stage]
        subject, name = _PEERS.get(stage, ("", ""))
        theirs = ratios.get((subject, stage))
        peer = _met(ours, theirs, f"{name} {theirs:.2f}") if theirs else ""
        aims = [_met(round(ours, 2), each, f"{each:g}") for each in aim]  # as the page has it
        lines.append([str(stage), f"{ours:.2f}", *aims, peer])
    return lines


def of_settings() -> list[list[str]]:
    """Of each stage: the least and the largest multiple over the settings without offload."""
    found: dict[tuple[str, int], list[Json]] = defaultdict(list)
    for case in read_published("cpu-grid")["cases"]:
        if case["verdict"] in RAN and case["offload"] is None and case["subject"] != COMPUTE_ONLY:
            found[case["subject"], case["stage"]].append(case)
    lines = []
    for stage in _AIMS:
        subject, name = _PEERS.get(stage, ("", ""))
        peer = f"{name} {_span(found[subject, stage])}" if name else ""
        lines.append([str(stage), _span(found["reference", stage]), peer, _span(found["deepspeed", stage])])
    return lines


def _span(cases: list[Json]) -> str:
    ratios = [case["time"]["ratio"] for case in cases]
    fp32_only = all(case["scenario"].get("dtype", "fp32") == "fp32" for case in cases)
    return f"{min(ratios):.2f} to {max(ratios):.2f}" + " (fp32 only)" * fp32_only


def test_aims() -> None:
    """Every number, and whether the aim was met."""
    [_, _, *shown] = markdown_tables(_PAGE)["The aims"]
    assert shown == of_aims()


def test_settings() -> None:
    """The spans over the settings of the grid."""
    [_, _, *shown] = markdown_tables(_PAGE)["In other settings"]
    assert shown == of_settings()


def test_the_report_in_the_readme() -> None:
    """Each of its lines stands in the published report."""
    [excerpt] = re.findall(r"\n## A report\n(.*?)\n## ", read("README.md"), re.DOTALL)
    report = (ROOT / "reports" / "cpu-two-cores" / "report.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in excerpt.splitlines() if line.startswith(("|", "- **"))]
    assert len(shown) > 20
    assert set(shown) <= set(report)
