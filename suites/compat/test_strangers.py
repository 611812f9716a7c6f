"""Scripts of strangers: each runs unmodified at every stage, and prints the same losses to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.compat.jobs import offline
from zerobench.suites.compat.strangers import HUGGING_FACE, PLAIN, launched, run_as_main


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


_LAUNCHES = [("launch", "chat_sft"), ("torchrun", "squad"), ("accelerate", "accelerated")]


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "name"), _LAUNCHES)
def test_launchers(two: Pool, launcher: str, name: str, tmp_path: Path) -> None:
    """A launched script prints the losses that it prints on ranks of a pool."""
    if launcher == "accelerate" and offline():
        pytest.skip("needs the extra hf: pip install 'zerobench[hf]'")
    given = {**PLAIN, **HUGGING_FACE}[name]
    expected = _losses(two.run(run_as_main, name, given, 2, str(tmp_path / "pool"), timeout=300)[0])
    without = [] if launcher == "accelerate" else given  # accelerate launch gives the stage by the environment
    assert _losses(launched(launcher, name, without, 2, tmp_path / "launched")) == expected
    assert expected


def _losses(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "loss" in line and not line.startswith("[")]


def _check_same(printed: list[str]) -> None:
    first, *others = (text.splitlines() for text in printed)
    assert len(first) >= 3
    for other in others:
        assert other == first
