"""The seeds' jobs through Hugging Face's Trainer: every stage, precision and launcher gives one trajectory."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from zerobench.suites.compat.programs.jobs import SCRIPTS, Job, finished, logged, offline, weights

pytestmark = pytest.mark.skipif(offline(), reason="needs the extra hf: pip install 'zerobench[hf]'")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcome of a job at stage 0, by name and precision; each runs once."""

    @cache
    def run(name: str, precision: str) -> tuple[Any, Any]:
        out = tmp_path_factory.mktemp("first") / "out"
        finished(Job(name, 0, precision, "torchrun").run(out))
        return logged(out), weights(out)

    return run


@pytest.mark.rotating
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_stages(name: str, precision: str, stage: int, first: Any, tmp_path: Path) -> None:
    """Losses, norms, rates, evaluations and the saved weights are those of stage 0, bit for bit."""
    out = tmp_path / "out"
    printed = finished(Job(name, stage, precision).run(out))
    assert printed.count("zerobench: deepspeed 0.19.8+zerobench is zerobench's reference engine") == 1
    log, saved = first(name, precision)
    assert len([entry for entry in log if "loss" in entry]) == 6
    assert logged(out) == log
    _same(weights(out), saved)


def _same(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """The same tensors; at stage 3 a tied weight is saved once, as transformers does with a plain model."""
    assert found.items() <= expected.items()
    assert set(found.values()) == set(expected.values())


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "options"), [("flan_t5", []), ("bloom", ["--fp16"])])
def test_the_seeds_configuration(name: str, options: list[str], tmp_path: Path) -> None:
    """The configuration of docs/examples as it is: stage 3 with offload of both kinds, and fp16 with offload."""
    out = tmp_path / "out"
    finished(Job(name).run(out, *options))
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-6"}
    assert (out / "checkpoint-6" / "latest").read_text().splitlines()[0] == "global_step6"


@pytest.mark.rotating
@pytest.mark.parametrize(("stage", "then"), [(0, 0), (3, 3), (3, 1)])
@pytest.mark.parametrize("name", SCRIPTS)
def test_resume(name: str, stage: int, then: int, first: Any, tmp_path: Path) -> None:
    """New processes continue from checkpoint-3, at another stage, too, with the bits of the uninterrupted job."""
    finished(Job(name, stage).run(tmp_path / "whole"))
    out = tmp_path / "resumed"
    finished(Job(name, then).run(out, "--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-3")))
    log, saved = first(name, "fp32")
    assert logged(out) == log
    _same(weights(out), saved)


@pytest.mark.rotating
def test_use_cpu(first: Any, tmp_path: Path) -> None:
    """The job trains on the CPU as without it, by the engine."""
    out = tmp_path / "out"
    printed = finished(Job("bloom", 2).run(out, "--use_cpu", "True"))
    assert "is zerobench's reference engine" in printed
    log, saved = first("bloom", "fp32")
    assert logged(out) == log
    _same(weights(out), saved)


@pytest.mark.slow
def test_a_variable_that_turns_deepspeed_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCELERATE_USE_CPU would train by DistributedDataParallel without a word, so it is refused."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    done = Job("bloom", 2).run(tmp_path / "out")
    assert done.returncode == 1
    assert "Accelerator(cpu=True) and the variable ACCELERATE_USE_CPU turn DeepSpeed off in silence" in done.stderr
