"""The equivalence suite's conditions for holding an engine to a property."""

from __future__ import annotations

import pytest

from zerobench.suites.support.trials import Trials


@pytest.fixture(scope="session")
def bits(trials: Trials) -> Trials:
    """An engine that promises the contract's bits; others are held to the forms in test_every_step.py,
    test_every_engine.py and test_peers.py."""
    if not trials.subject.promises_bits:
        pytest.skip(f"{trials.name} promises no bits: test_every_step.py and test_every_engine.py have the other form")
    return trials


@pytest.fixture(scope="session")
def reference(trials: Trials) -> Trials:
    """The reference engine, for properties of its own public API."""
    if trials.name != "reference":
        pytest.skip("a property of the reference engine's API")
    return trials
