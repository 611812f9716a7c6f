"""Scripts of strangers: each runs unmodified at every stage, and prints the same losses to the last digit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.compat.programs.jobs import offline
from zerobench.suites.compat.programs.strangers import HUGGING_FACE, PLAIN, launched, run_as_main


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    """Two ranks of their own: the scripts' configurations are for two."""
    with Pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", PLAIN)
def test_stages(two: Pool, name: str, tmp_path: Path) -> None:
    """Rank 0 prints the same at all stages."""
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


@pytest.mark.rotating
@pytest.mark.skipif(offline(), reason="needs the extra hf: pip install 'zerobench[hf]'")
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_other_ranks(before: int, after: int, stage: int, tmp_path: Path) -> None:
    """Trainer's resume_from_checkpoint continues on another number of ranks, with the same samples in each step."""
    whole = _logged(before, stage, tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "out" / "checkpoint-2"
    resumed = _logged(after, stage, tmp_path / "resumed", "--resume_from_checkpoint", str(checkpoint))
    assert [entry["step"] for entry in resumed if "loss" in entry] == [1, 2, 3, 4]
    for found, expected in zip(resumed, whole, strict=True):
        for name in ("loss", "eval_loss", "learning_rate", "grad_norm"):  # the ranks' means are other sums
            assert found.get(name, 0.0) == pytest.approx(expected.get(name, 0.0), rel=1e-6)


def _logged(ranks: int, stage: int, folder: Path, *more: str) -> list[dict[str, Any]]:
    """Trainer's log of each step and evaluation, of four samples in a micro-step."""
    batch = ["--per_device_train_batch_size", str(4 // ranks), "--load_best_model_at_end", "False"]
    given = ["--deepspeed", "auto.json", *batch, *more]
    with Pool(ranks) as pool:
        printed = pool.run(run_as_main, "trainer", given, stage, str(folder), timeout=300)[0]
    lines = [line.removeprefix("log ") for line in printed.splitlines() if line.startswith("log ")]
    return [entry for entry in map(ast.literal_eval, lines) if "loss" in entry or "eval_loss" in entry]
