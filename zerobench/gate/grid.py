"""Grid: the runs that the gate makes, as arguments of ``zerobench run``, its only means of measuring."""

from __future__ import annotations

from collections.abc import Iterator

Arguments = tuple[str, ...]
SUBJECT = "reference"


def accounted(subject: str) -> Iterator[Arguments]:
    """For bytes, bits and bounds: stages 0 to 3 in fp32 and bf16, with and without accumulation, on two ranks.

    The last run has exact data: its bits are compared on every machine.
    """
    for dtype in ("fp32", "bf16"):
        for accumulation in ("1", "2"):
            yield (*_common(subject), "--dtype", dtype, "--accumulation", accumulation, "--steps", "4")
    yield ("--subjects", subject, "--model", "exact", "--ranks", "2", "--accumulation", "2", "--steps", "1")


def timed(subject: str) -> Arguments:
    """For times: one run of a fresh process, with 3 warm-up steps."""
    return (*_common(subject), "--steps", "160", "--times-only")


def _common(subject: str) -> Arguments:
    return ("--subjects", subject, "--model", "nano", "--ranks", "2")
