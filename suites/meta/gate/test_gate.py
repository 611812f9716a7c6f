"""The gate's own power: a worse result fails with the right exit code and a complete message."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from zerobench.results import Json
from zerobench.suites.meta.gate.given import Gate, bare, in_markdown


def test_the_same_passes(gate: Gate, measured: dict[str, Json]) -> None:
    """No finding at all."""
    assert gate(measured["Same"]) == (0, "# Gate: passed\n\n1 cases measured; all as in the baseline.\n")


@pytest.mark.parametrize(
    ("engine", "metric", "difference", "rule"),
    [
        ("OneMoreGather", "traffic: all_gather calls", "+1 calls on rank 0", "exact"),
        ("OneMoreGather", "traffic: all_gather sent", "+4 bytes on rank 0", "exact"),
        ("OneMoreByte", "memory: optimizer", "+1 bytes on rank 0", "exact"),
        ("Leak", "memory: working", "% of the bound on rank", "bounded"),
    ],
)
def test_worse_fails(
    gate: Gate, measured: dict[str, Json], engine: str, metric: str, difference: str, rule: str
) -> None:
    """One regression fails the gate, and its line names the case, both values, the difference and the rule."""
    code, said = gate(measured[engine])
    assert code == 1
    [line] = [line for line in said.splitlines() if f"| {in_markdown(metric)} " in line]
    level, case, _, base, head, what, by = (cell.strip() for cell in line.strip("|").split("|"))
    assert level == "regression"
    assert case.startswith("zerobench.suites.meta.gate.worse:Same stage 1, nano, fp32, N = 2, A = 1")
    assert base != head
    assert difference in what
    assert by.startswith(rule)
    assert '"stage": 1' in said
    assert "zerobench gate --baseline" in said
    assert said.rstrip("`\n").endswith("--update")


def test_a_small_leak_warns(gate: Gate, measured: dict[str, Json]) -> None:
    """A value within the bound warns and does not fail; a baseline has just the share that does not warn."""
    code, said = gate(measured["SmallLeak"])
    assert code == 0
    assert "1 warning" in said
    assert "memory: working" in said


def test_better_is_to_be_committed(gate: Gate, measured: dict[str, Json]) -> None:
    """If a byte less is used, the gate fails, too."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["memory"]["measured"][1]["gradients"] -= 1
    code, said = gate(results)
    assert code == 1
    assert "-1 bytes on rank 1: better, commit it" in said


def test_other_bits_fail_on_the_same_platform_only(gate: Gate, measured: dict[str, Json]) -> None:
    """On another platform they are shown as not comparable."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["digest"] = "0" * 64
    code, said = gate(results)
    assert (code, "1 regression" in said) == (1, True)
    results["environment"]["torch"] = "0.0"
    code, said = gate(results)
    assert (code, "not comparable" in said) == (0, True)
    assert "torch 0.0, not " in said


def test_bits_that_are_gone_are_an_error_on_every_platform(gate: Gate, measured: dict[str, Json]) -> None:
    """An engine that no longer promises bits has none to compare, here or elsewhere."""
    results = copy.deepcopy(measured["Same"])
    results["environment"]["torch"] = "0.0"
    results["cases"][0] |= {"digest": None, "held": None}
    code, said = gate(results)
    assert (code, "trajectory" in said) == (2, True)


def test_a_peak_below_the_states_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """It was not measured: a peak has the states in it."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["memory"]["measured"][1]["peak"] = 0
    code, said = gate(results)
    assert (code, "memory: working" in said) == (2, True)


def test_another_case_under_the_same_id_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """Its numbers may be equal, and are those of another Scenario."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["scenario"] |= {"clip": 0.5}
    code, said = gate(results)
    assert (code, "the case is another one" in said) == (2, True)


def test_other_owners_fail(gate: Gate, measured: dict[str, Json]) -> None:
    """Two ranks that swap their states hold as many bytes as before."""
    results = copy.deepcopy(measured["Same"])
    held = results["cases"][0]["held"]
    assert held[0] != held[1]
    held.reverse()
    code, said = gate(results)
    assert code == 1
    assert "held by rank 0" in said


def test_newly_failing_fails(gate: Gate, measured: dict[str, Json]) -> None:
    """A crashed case has no numbers, and still fails."""
    code, said = gate(bare(measured["Same"], "crashed", "rank 1 was killed\nmore"))
    assert code == 1
    assert "rank 1 was killed" in said
    assert "more" not in said.split("## Exact")[1].split("Scenarios:")[0]


@pytest.mark.parametrize("lost", ["memory", "traffic", "digest", "held"])
def test_what_is_no_longer_measured_is_an_error(gate: Gate, measured: dict[str, Json], lost: str) -> None:
    """A metric of the baseline without a match."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0][lost] = None
    code, said = gate(results)
    assert code == 2, said
    assert "NOT ENOUGH MEASURED" in said


def test_every_failing_case_says_its_scenario(gate: Gate, measured: dict[str, Json]) -> None:
    """It does so even if two short names are equal; the name has every setting that the command line has."""
    results = copy.deepcopy(measured["Same"])
    [case] = results["cases"]
    changes: list[Json] = [{"offload_optimizer": "cpu"}, {"clip": 0.5}, {"seed": 1}, {"seed": 2}]
    results["cases"] = [
        {**case, "id": str(at) * 12, "scenario": {**case["scenario"], **change}} for at, change in enumerate(changes)
    ]
    _, said = gate(results)
    for change in changes:
        assert json.dumps(change)[1:-1] in said.split("Scenarios:")[1]
    assert "A = 1, optimizer on cpu" in said
    assert "A = 1, clip 0.5" in said


def test_a_case_that_nobody_judged_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """It was right in the baseline; its bytes are still compared."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0] |= {"verdict": "measured", "judgement": None}
    code, said = gate(results)
    assert (code, "| right " in said, "| measured " in said) == (2, True, True)
    results["cases"][0]["memory"]["measured"][0]["optimizer"] += 1
    code, said = gate(results)
    assert (code, "+1 bytes on rank 0" in said) == (1, True)


def test_an_empty_result_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """A result without measurements never passes."""
    code, said = gate({**measured["Same"], "cases": []})
    assert code == 2
    assert "0 cases" in said
    assert "an entry of the baseline that matches nothing" in said


def test_results_of_two_platforms(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """They have no bits in common for a gate."""
    other = copy.deepcopy(measured["Same"])
    other["cases"][0]["id"] = "0123456789ab"
    other["environment"]["torch"] = "0.0"
    (tmp_path / "other.json").write_text(json.dumps(other))
    code, said = gate(measured["Same"], "--results", str(tmp_path / "results.json"), str(tmp_path / "other.json"))
    assert code == 3
    assert "different platforms: torch is" in said
