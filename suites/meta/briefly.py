"""A pytest plugin for a glance at every test: one Scenario of a property, one case of a parametrized test."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

PROFILE = "briefly"

settings.register_profile(
    PROFILE,
    max_examples=1,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the first case of each test."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    items[:] = first.values()
