"""Sharing: the tests of one process of ``pytest -n``, which share runs, fixtures and caches."""

from __future__ import annotations

from typing import Any

import pytest

#: Files and folders whose tests share nothing but the pool of ranks: any process may take the next of them.
_SINGLE = (
    "suites/equivalence/",
    "suites/meta/test_mutants.py",
    "suites/meta/test_wrong_resumes.py",
    "suites/faults/",
    "suites/project/cluster/",
)


def is_single(test: str) -> bool:
    """Whether a test, named by its node id, may run apart from the others of its file."""
    return any(name in test for name in _SINGLE)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out whole files in the order of collection, and single tests."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if is_single(nodeid) else str(super()._split_scope(nodeid))

    return Files(config, log)
