"""The model that was drawn last, for a process that builds one model for several subjects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from zerobench.scenario import Scenario


class _Last:
    """The last model as it was drawn, and the fields of its Scenario that decide its weights."""

    def __init__(self) -> None:
        #: Within :func:`drawn_once`.
        self.kept = False
        self._key: Any = None
        self._model: nn.Module | None = None

    def copy(self, scenario: Scenario, draw: Callable[[Scenario], nn.Module]) -> nn.Module:
        """A copy of the Scenario's model, which is drawn if the last one was another."""
        key = scenario.model, scenario.seed, scenario.data
        if self._model is None or self._key != key:
            self._model, self._key = draw(scenario), key
        return copy.deepcopy(self._model)


LAST = _Last()


@contextmanager
def drawn_once() -> Iterator[None]:
    """Inside, a model that is built again is copied: to draw a billion weights takes ten seconds.

    The last model is kept for the next time.
    """
    LAST.kept = True
    try:
        yield
    finally:
        LAST.kept = False
