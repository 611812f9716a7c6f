"""The reference engine, the subject of these tests of the public API; ``--subject`` does not change that."""

from __future__ import annotations

import pytest

from zerobench.ranks import Pool
from zerobench.suites.support.trials import Trials


@pytest.fixture(scope="session")
def reference(pool: Pool) -> Trials:
    """The reference engine on the session's ranks."""
    return Trials(pool, "reference")
