"""The values that several test files of the gate share."""

from __future__ import annotations

from collections.abc import Callable

from zerobench.results import Json

#: The fixture ``gate``: takes results and options, returns the exit code and the output.
Gate = Callable[..., tuple[int, str]]


def bare(results: Json, verdict: str, reason: str) -> Json:
    """The results of one case without numbers."""
    nothing = dict.fromkeys(("judgement", "memory", "traffic", "digest", "held", "time"))
    return {**results, "cases": [{**results["cases"][0], **nothing, "verdict": verdict, "reason": reason}]}


def in_markdown(metric: str) -> str:
    return metric.replace("_", "\\_")
