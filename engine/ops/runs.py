"""Runs: ranges of flat tensors with different hyperparameters, which one call of a kernel updates."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

#: The hyperparameters of one rule: a frozen dataclass.
Values = TypeVar("Values")


@dataclass(frozen=True)
class Run(Generic[Values]):
    """Elements [start, stop) of flat tensors, which are updated alike."""

    start: int
    stop: int
    parameter: int  # the position of their factor among all parameters' factors
    values: Values

    @property
    def here(self) -> slice:
        """The elements."""
        return slice(self.start, self.stop)

    def factor(self, factors: Tensor) -> Tensor:
        """Their factor, [1]."""
        return factors[self.parameter : self.parameter + 1]


def one_run(n: int, values: Values) -> list[Run[Values]]:
    """One run of n elements, with the first factor."""
    return [Run(0, n, 0, values)]


def bounds(runs: Sequence[Run[Any]]) -> list[int]:
    """Start, stop and parameter of each run, for an operator."""
    return [number for run in runs for number in (run.start, run.stop, run.parameter)]


def each(bounds: Sequence[int], scalars: Sequence[float]) -> Iterator[tuple[slice, slice, Sequence[float]]]:
    """The elements of each run, its factor, and its scalars."""
    count = len(scalars) * 3 // len(bounds) if bounds else 0
    for i in range(0, len(bounds), 3):
        first = i // 3 * count
        yield slice(bounds[i], bounds[i + 1]), slice(bounds[i + 2], bounds[i + 2] + 1), scalars[first : first + count]


def check(factors: Tensor, bounds: Sequence[int], scalars: Sequence[float], count: int, like: Tensor) -> None:
    """Raise unless the runs lie in ``like``, and each has a factor on its device and ``count`` scalars."""
    if factors.dim() != 1 or factors.dtype != torch.float32 or factors.device != like.device:
        given = f"{tuple(factors.shape)}, {factors.dtype} on {factors.device}"
        raise ValueError(f"factors: expected 1 dimension, torch.float32 on {like.device}; got {given}")
    if len(bounds) % 3 or len(scalars) != len(bounds) // 3 * count:
        raise ValueError(f"runs: expected 3 bounds and {count} scalars each; got {len(bounds)} and {len(scalars)}")
    for start, stop, parameter in zip(bounds[::3], bounds[1::3], bounds[2::3], strict=True):
        if not (0 <= start <= stop <= like.numel() and 0 <= parameter < factors.numel()):
            sizes = f"{like.numel()} elements and {factors.numel()} factors"
            raise ValueError(f"runs: elements {start} to {stop} with factor {parameter} are not within {sizes}")


class Table:
    """The runs in memory, for a kernel; keep it until the kernel has started."""

    def __init__(self, factors: Tensor, bounds: Sequence[int], scalars: Sequence[float]) -> None:
        self._bounds, self._scalars = array("q", bounds), array("f", scalars)
        #: The arguments of the kernel: factors, the number of runs, their bounds, their scalars.
        self.arguments = (
            factors.data_ptr(),
            len(bounds) // 3,
            self._bounds.buffer_info()[0] or None,
            self._scalars.buffer_info()[0] or None,
        )
