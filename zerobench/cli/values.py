"""The values of flags, as argparse takes them; if one is invalid, a UsageError says so in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import get_args

from zerobench.bench.plan import STAGES_OF_ZERO
from zerobench.errors import UsageError, unknown
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.scenario import OffloadTarget


def names(text: str) -> tuple[str, ...]:
    """Distinct names, separated by commas."""
    found = tuple(dict.fromkeys(name for name in map(str.strip, text.split(",")) if name))
    if not found:
        raise UsageError(f"--subjects: expected names between commas, got {text!r}")
    return found


def parts(text: str) -> tuple[Part, ...]:
    """Parts of a step, separated by commas."""
    one = one_of("part", ALL_PARTS)
    named = [one(part.strip()) for part in text.split(",")]
    return tuple(part for part in ALL_PARTS if part in named)


def stages(text: str) -> tuple[int, ...]:
    """Distinct stages, separated by commas."""
    one = one_of("stage", map(str, STAGES_OF_ZERO))
    return tuple(dict.fromkeys(int(one(stage.strip())) for stage in text.split(",")))


def offloads(text: str) -> tuple[str, ...]:
    """Distinct offload targets, separated by commas."""
    one = one_of("offload", get_args(OffloadTarget))
    return tuple(dict.fromkeys(one(target.strip()) for target in text.split(",")))


def one_of(kind: str, known: Iterable[str]) -> Callable[[str], str]:
    """Takes one of the known names."""
    choices = list(known)

    def parse(text: str) -> str:
        if text not in choices:
            raise unknown(kind, text, choices)
        return text

    return parse


def whole(flag: str, least: int) -> Callable[[str], int]:
    """Takes a whole number of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise UsageError(f"--{flag}: expected a whole number of at least {least}, got {text!r}")
        return int(text)

    return parse


def number(flag: str) -> Callable[[str], float]:
    """Takes a finite number of at least 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise UsageError(f"--{flag}: expected a number of at least 0, got {text!r}")
        return value

    return parse
