"""Exact data: on every machine the gate compares the bits of a run in which no sum is rounded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from zerobench.cli import commands, options
from zerobench.gate import grid, revisions
from zerobench.judge.judgement import is_exact
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.results import Json
from zerobench.results.files import read
from zerobench.scenario import Scenario
from zerobench.suites.support.checkout import ROOT

Gate = Callable[..., tuple[int, str]]

_BASELINE = ROOT / "reports" / "baselines" / "cpu.json"
#: The gate's own run of exact data, at the stage whose states differ most between the ranks.
_RUN = (*list(grid.accounted("reference"))[-1], "--stages", "2")
#: Another make of CPU.
_OTHER = {"cpu": "Another Processor", "cpu_capability": "AVX2"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The results of an exact case of the gate's."""
    directory = tmp_path_factory.mktemp("measured")
    assert commands.main(["run", *_RUN, "--out", str(directory)]) == 0
    return read(directory / "results.json")


@pytest.fixture
def gate(measured: Json, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """Gate results against a baseline that another make of CPU measured: the exit code and the output."""
    baseline, path = tmp_path / "baseline.json", tmp_path / "results.json"

    def run(results: Json, *more: str) -> tuple[int, str]:
        path.write_text(json.dumps(results))
        capsys.readouterr()
        code = commands.main(["gate", "--baseline", str(baseline), "--results", str(path), *more])
        return code, capsys.readouterr().out

    assert run(measured | {"environment": measured["environment"] | _OTHER}, "--update")[0] == 0
    return run


def test_the_same_bits_pass_on_another_cpu(gate: Gate, measured: Json) -> None:
    """No digest is left as not comparable."""
    code, said = gate(measured)
    assert (code, "1 cases measured" in said, "not comparable" in said) == (0, True, False), said


@pytest.mark.parametrize("metric", ["trajectory", "held by rank 1"])
def test_another_bit_fails_on_another_cpu(gate: Gate, measured: Json, metric: str) -> None:
    """The rule in the message is that of exact data."""
    results = copy.deepcopy(measured)
    case = next(each for each in results["cases"] if each["stage"] == 2)
    if metric == "trajectory":
        case["digest"] = "0" * 64
    else:
        case["held"][1] = "0" * 64
    code, said = gate(results)
    [line] = [line for line in said.splitlines() if f"| {metric} " in line]
    assert (code, "regression" in line, "the same on every machine" in line) == (1, True, True)


def test_rounded_data_stay_not_comparable(gate: Gate, measured: Json) -> None:
    """If a baseline does not say that a case is exact, another CPU's digests of it are only shown."""
    rounded = copy.deepcopy(measured)
    for case in rounded["cases"]:
        case["judgement"] = case["judgement"] and case["judgement"] | {"exact": False}
    other = rounded | {"environment": rounded["environment"] | _OTHER}
    assert gate(rounded, "--update")[0] == 0
    other["cases"][0]["digest"] = "0" * 64
    code, said = gate(other)
    assert (code, "not comparable" in said) == (0, True)


def test_the_committed_baseline_has_these_bits(measured: Json) -> None:
    """On this machine, too, whichever it is."""
    committed = json.loads(_BASELINE.read_text(encoding="utf-8"))["cases"]
    for case in measured["cases"]:
        if case["subject"] == "reference":
            digests = {"trajectory": case["digest"]} | {f"held by rank {r}": d for r, d in enumerate(case["held"])}
            assert committed[case["id"]]["digests"] == digests, case["id"]
            assert committed[case["id"]]["exact_data"]


def test_the_data_are_exact_with_room() -> None:
    """Losses, gradients and parameters use 15 of fp32's 24 bits: a sum of hundreds has no rounding in any order."""
    scenario = _scenario()
    trained = canonical(scenario, frozenset(["gradients", "parameters"]))
    assert is_exact(trained, float64(scenario, frozenset(["parameters"])))
    [step] = trained.steps
    values = torch.cat([v.flatten() for v in (*step.losses, *step.gradients.values(), *step.parameters.values())])
    grains = values * 2**6  # exact
    assert torch.equal(grains, grains.round())
    assert float(grains.abs().max()) < 2**15
    assert all(float(loss) for loss in step.losses)  # a zero could have either sign


@pytest.mark.slow
def test_other_kernels_have_the_same_bits(measured: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vector instructions torch adds in another order."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    plain = revisions.measure(ROOT, _RUN)
    assert plain["environment"]["cpu_capability"] != measured["environment"]["cpu_capability"]
    for ours, theirs in zip(measured["cases"], plain["cases"], strict=True):
        assert (ours["digest"], ours["held"]) == (theirs["digest"], theirs["held"]), ours["scenario"]


def _scenario() -> Scenario:
    """That of the exact run."""
    return options.base_scenario(options.parser().parse_args(["run", *_RUN]))
