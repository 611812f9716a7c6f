"""Scripts of strangers: each runs unmodified at every stage, and prints the same losses to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.compat.jobs import offline
from zerobench.suites.compat.strangers import HUGGING_FACE, PLAIN, run_as_main


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    """Two ranks of their own: the scripts' configurations are for two."""
    with Pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", PLAIN)
def test_stages(two: Pool, name: str, tmp_path: Path) -> None:
    """What rank 0 prints is the same at all stages."""
    printed = [two.run(run_as_main, name, PLAIN[name], stage, str(tmp_path / str(stage)))[0] for stage in loops.STAGES]
    _check_same(printed)


@pytest.mark.rotating
@pytest.mark.skipif(offline(), reason="needs the extra hf: pip install 'zerobench[hf]'")
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_stages_of_hugging_face(two: Pool, name: str, tmp_path: Path) -> None:
    """The same with Trainer, accelerate and peft."""
    printed = [
        two.run(run_as_main, name, HUGGING_FACE[name], stage, str(tmp_path / str(stage)), timeout=300)[0]
        for stage in loops.STAGES
    ]
    _check_same(printed)


def _check_same(printed: list[str]) -> None:
    first, *others = (text.splitlines() for text in printed)
    assert len(first) >= 3
    for other in others:
        assert other == first
