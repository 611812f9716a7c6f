"""Published numbers of the ZeRO paper (arXiv 1910.02054v3) as printed, what its formulas give, and how the two differ.

GB are 10^9 bytes, B and T billions and trillions of parameters. A number in print has been rounded by some rule, which
is not the same in all blocks of a table; where no rule leads from the formula to the print, an anomaly says what does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import floor, prod
from typing import Literal

from zerobench.theory import memory

Rule = Literal["half up", "truncated"]


def in_print(value: Fraction, decimals: int, rule: Rule = "half up") -> str:
    """A number with so many decimals, trailing zeros left out."""
    scaled = value * 10**decimals
    digits = floor(scaled + Fraction(1, 2)) if rule == "half up" else floor(scaled)
    whole, rest = divmod(digits, 10**decimals)
    return f"{whole}.{rest:0{decimals}d}".rstrip("0").rstrip(".") if decimals else str(whole)


@dataclass(frozen=True)
class Cell:
    """One printed number, the formula's exact one, and the rule that leads from this to that."""

    where: str
    printed: str
    formula: Fraction
    decimals: int
    rule: Rule = "half up"

    @property
    def rounded(self) -> str:
        """The formula's number as the rule prints it."""
        return in_print(self.formula, self.decimals, self.rule)


# 7.5B parameters on 64 ranks, stages 0 to 3.
_FIGURE_1 = ("120", "31.4", "16.6", "1.9")

_WORLDS = (1, 4, 16, 64, 256, 1024)
# By billions of parameters: for each number of ranks, stages 1, 2 and 3.
_TABLE_1: dict[Fraction, str] = {
    Fraction("7.5"): "120 120 120  52.5 41.3 30  35.6 21.6 7.5  31.4 16.6 1.88  30.4 15.4 0.47  30.1 15.1 0.12",
    Fraction(128): "2048 2048 2048  896 704 512  608 368 128  536 284 32  518 263 8  513 257 2",
    Fraction(1000): "16000 16000 16000  7000 5500 4000  4750 2875 1000  4187 2218 250  4046 2054 62.5  4011 2013 15.6",
}

# By degree of model parallelism: the largest model on 64 ranks of 32 GB each, stages 0 to 3.
_TABLE_2: dict[int, str] = {
    1: "2B 7.6B 14.4B 128B",
    2: "4B 15.2B 28.8B 256B",
    4: "8B 30.4B 57.6B 0.5T",
    8: "16B 60.8B 115.2B 1T",
    16: "32B 121.6B 230.4B 2T",
}


def figure_1() -> Iterator[Cell]:
    """GB of all states on each rank, rounded."""
    for stage, printed in enumerate(_FIGURE_1):
        yield Cell(f"figure 1, stage {stage}", printed, _gigabytes(stage, Fraction("7.5"), 64), 1)


def table_1() -> Iterator[Cell]:
    """GB of all states on each rank.

    The smallest model's are rounded half up (half to even would print 41.2), to two decimals below ten; the others' are
    cut to whole numbers, and below a hundred to one decimal.
    """
    for billions, block in _TABLE_1.items():
        for position, printed in enumerate(block.split()):
            world, stage = _WORLDS[position // 3], 1 + position % 3
            where, value = f"table 1, {billions}B, {world} ranks, stage {stage}", _gigabytes(stage, billions, world)
            if billions < 10:
                yield Cell(where, printed, value, 1 if value >= 10 else 2)
            else:
                yield Cell(where, printed, value, int(value < 100), "truncated")


def table_2() -> Iterator[Cell]:
    """Parameters that fit: every row is the first one as it is printed, multiplied; trillions have one decimal."""
    for parallelism, row in _TABLE_2.items():
        for stage, printed in enumerate(row.split()):
            value = Fraction(in_print(_fitting(stage), 1)) * parallelism
            scale = 1000 if printed.endswith("T") else 1
            yield Cell(f"table 2, model parallelism {parallelism}, stage {stage}", printed[:-1], value / scale, 1)


def _gigabytes(stage: int, billions: Fraction, world: int) -> Fraction:
    return sum(memory.paper(stage, billions, world).values(), Fraction())


def _fitting(stage: int) -> Fraction:
    """Billions of parameters that fit 32 GB on each of 64 ranks."""
    return 32 / _gigabytes(stage, Fraction(1), 64)


@dataclass(frozen=True)
class Anomaly:
    """A printed number that its formula, rounded, does not give; ``explained`` is how it came about."""

    where: str
    printed: str
    formula: Fraction
    explained: str
    verdict: str


def _billions(*factors: int) -> Fraction:
    return Fraction(prod(factors), 10**9)


ANOMALIES = (
    Anomaly(
        where="table 1, GB of 128B at stage 2 on 1024 ranks",
        printed="257",
        formula=_gigabytes(2, Fraction(128), 1024),
        explained=in_print(_gigabytes(2, Fraction(128), 1024), 0, "truncated"),
        verdict="two rules in one table: the 7.5B block is rounded, the others are truncated",
    ),
    Anomaly(
        where="table 2, billions at stage 1 with model parallelism 16",
        printed="121.6",
        formula=16 * _fitting(1),
        explained=in_print(16 * Fraction(in_print(_fitting(1), 1)), 1),
        verdict="rounded before it was multiplied",
    ),
    Anomaly(
        where="section 6.1, GB of checkpoints of 100B: batch 32, sequence 1024, hidden 8192, 125 layers",
        printed="33",
        formula=_billions(2, 32, 1024, 8192, 125),
        explained=in_print(_billions(32, 1024, 8192, 125), 0, "truncated"),
        verdict="elements, not bytes",
    ),
    Anomaly(
        where="section 3.2, GB of activations of GPT-2 1.5B, as its footnote counts them",
        printed="60",
        formula=_billions(12, 1600, 32, 1024, 48),
        explained=in_print(_billions(2, 12, 1600, 32, 1024, 48), 0),
        verdict="the footnote's 12 * hidden * batch * sequence * layers are elements, of two bytes each",
    ),
    Anomaly(
        where="section 3.2, GB of the same with one checkpoint in each layer",
        printed="8",
        formula=_billions(2, 1600, 32, 1024, 48),
        explained=in_print(Fraction(60**0.5), 0),
        verdict="the square root of 60, which is no number of bytes",
    ),
    Anomaly(
        where="section 7, volume of stage 2 over the parameters, with 4 micro-steps",
        printed="2",
        formula=Fraction(4 + 1),
        explained=in_print(Fraction(1 + 1), 0),
        verdict="holds for one micro-step only: gradients travel at each, parameters once",
    ),
)
