"""The canonical trainer's recordings, kept from one mutant to the next, because every mutant is tried on the same
Scenarios."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest import mock

from zerobench.oracles.canonical_trainer import canonical
from zerobench.recording import Trajectory

#: The modules that ask the canonical trainer.
_ASKING = ("zerobench.bench.runner", "zerobench.suites.equivalence.test_peers")


@contextmanager
def oracles_remember() -> Iterator[None]:
    """Let these modules train each Scenario once."""
    with mock.patch(f"{_ASKING[0]}.canonical", _copied), mock.patch(f"{_ASKING[1]}.canonical", _copied):
        yield


_trained = lru_cache(maxsize=1024)(canonical)


def _copied(*arguments: Any, **options: Any) -> Trajectory:
    """A recording whose steps the caller may change; the tensors in them are shared."""
    kept = _trained(*arguments, **options)
    changed = copy.copy(kept)
    changed.steps = [copy.copy(step) for step in kept.steps]
    return changed
