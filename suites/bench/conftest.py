"""Benchmarks take minutes, so that they run only where they are named: ``pytest suites/bench``."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore what is here unless it was named."""
    named = any(Path(str(arg).split("::")[0]).resolve().is_relative_to(_HERE) for arg in config.args)
    return None if named or collection_path.is_dir() else True
