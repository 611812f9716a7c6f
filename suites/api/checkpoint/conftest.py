"""The ranks of these tests, and a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zerobench.ranks import Pool
from zerobench.suites.api.checkpoint import saved


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    """DeepSpeed's ranks: its group is always the whole world."""
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def three() -> Iterator[Pool]:
    """The reference engine's ranks."""
    with Pool(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A directory with a checkpoint of this engine's, and its states."""
    directory = tmp_path_factory.mktemp("own")
    return directory, saved.states(saved.save_twice(directory))
