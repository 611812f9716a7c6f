"""The constructors that run under zero.Init, which may use parameters that are sharded already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from zerobench.compat.zero.meeting import meet
from zerobench.engine.state.partitioned import Partition, partition_of


class Constructors:
    """Makes a sharded parameter whole while a constructor uses it, so that it constructs what it would without shards.

    For example ``nn.MultiheadAttention`` sets the bias of its output projection, and ``nn.Transformer`` draws all of
    its weights again. Edits of rank 0 persist. If the caller keeps a view, as of ``weight.data``, the parameter stays
    whole until the innermost constructor has ended; so does one that is given to the constructor, as those of torch's
    parametrizations are. Every rank must make the same uses.
    """

    def __init__(self) -> None:
        self._running: list[list[Partition]] = []  # of each constructor, the parameters that it keeps whole

    @contextmanager
    def running(self, given: Iterable[Any]) -> Iterator[None]:
        """Around a constructor; a collective if it keeps parameters whole, such as those among its arguments."""
        self._running.append([])
        try:
            for each in given:
                if isinstance(each, nn.Parameter) and (found := partition_of(each)) is not None:
                    self._gather(found)
                    self._running[-1].append(found)
            yield
        except BaseException:  # perhaps on this rank alone
            _release(self._running.pop(), None)
            raise
        _release(self._running.pop(), 0)

    @contextmanager
    def use(self, parameter: Partition) -> Iterator[bool]:
        """Make a parameter whole for a call; False if no constructor runs. A collective.

        Raises:
            RuntimeError: other ranks do not use it.
        """
        if not self._running:
            yield False
            return
        self._gather(parameter)
        before, kept = parameter.references, [parameter]
        try:
            yield True
        except BaseException:
            _release(kept, None)
            raise
        if parameter.references > before:
            self._running[-1] += kept
        else:
            _release(kept, 0)

    def _gather(self, parameter: Partition) -> None:
        meet()
        parameter.gather()


def _release(parameters: list[Partition], source: int | None) -> None:
    for each in parameters:
        each.release(source)
