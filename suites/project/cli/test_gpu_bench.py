"""The GPU's measurements, rehearsed on the CPU: every kind of part goes from its measurement to the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from zerobench.results import files
from zerobench.suites.bench import grid
from zerobench.suites.bench.gpu import __main__ as command
from zerobench.suites.bench.gpu import first_contact, parts
from zerobench.suites.bench.gpu.parts import Part, run
from zerobench.suites.bench.runs import Runs
from zerobench.suites.bench.smoke import POINT

_SEARCH = replace(grid.searches(True, "cpu", 2)[0], limit=1 << 30, most=1)
#: One part of each kind, of small sizes; the limit of the last is the system's, in place of a device's.
_SMALL: dict[str, parts.Measure] = {
    "first-contact": first_contact.measure,
    "kernel-pack": partial(parts._kernel, "pack", True),
    "stages-smoke": partial(parts._stages, replace(POINT, subjects=("reference",))),
    "capacity-small": partial(parts._capacity, _SEARCH),
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A measurement takes all cores of its process; the tests after it compare bits, which one thread has."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", _SMALL)
def test_part(name: str, tmp_path: Path) -> None:
    """It leaves results in the form of the schema, if it measures any, and a mark that it is done."""
    assert run(Part(name, _SMALL[name]), "cpu", tmp_path, "rehearsal")
    assert (tmp_path / f"{name}.done").exists()
    if name != "first-contact":
        assert files.read(tmp_path / f"{name}.json")["command"] == "rehearsal"


def test_every_part_has_a_kind() -> None:
    """On a GPU, quick or not, no two parts share a name, and each is of a kind that the rehearsal has."""
    for quick in (True, False):
        names = [part.name for part in parts.all_parts(quick, "cuda", 1)]
        assert len(set(names)) == len(names)
        assert {name.partition("-")[0] for name in names} == {name.partition("-")[0] for name in _SMALL}
        assert names[0] == "first-contact"


def _fails_between(runs: Runs) -> Iterator[bool]:
    runs.here()
    yield from parts._kernel("pack", True, runs)
    raise RuntimeError("the device is gone")


def test_results_are_written_after_every_case(tmp_path: Path) -> None:
    """If a part ends early, what it measured before is there, and the part is not done."""
    with pytest.raises(RuntimeError, match="gone"):
        run(Part("broken", _fails_between), "cpu", tmp_path, "rehearsal")
    assert files.read(tmp_path / "broken.json")["kernels"]
    assert not (tmp_path / "broken.done").exists()


def test_goes_on_after_a_failure_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next part runs, the report is rendered in any case, and a part that is done does not run again."""
    ran: list[str] = []
    reported: list[Path] = []

    def alone(part: Part, folder: Path, given: object) -> bool:
        ran.append(part.name)
        (folder / f"{part.name}.done").touch() if part.name != "bad" else None
        return part.name != "bad"

    monkeypatch.setattr(command, "all_parts", lambda *_: [Part(name, _fails_between) for name in ("bad", "good")])
    monkeypatch.setattr(command, "_alone", alone)
    monkeypatch.setattr(command, "_report", lambda out: reported.append(out) or True)  # type: ignore[func-returns-value]
    arguments = ["--device", "cpu", "--out", str(tmp_path)]
    assert command.main(arguments) == command.main(arguments) == 1
    assert ran == ["bad", "good", "bad"]
    assert reported == [tmp_path] * 2
    assert "not measured: bad" in capsys.readouterr().out


@pytest.mark.slow
def test_a_part_by_the_command(tmp_path: Path) -> None:
    """A process of its own measures it, and the report is there."""
    assert command.main(["kernel-pack", "--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["kernels"]
    assert (tmp_path / "report.md").exists()


def test_a_part_takes_at_most_eight_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that does not end is ended, and its log says so."""
    monkeypatch.setattr(command, "LIMIT", 0.01)
    given = command.parser().parse_args(["first-contact", "--device", "cpu", "--out", str(tmp_path)])
    assert not command._alone(Part("first-contact", first_contact.measure), tmp_path, given)
    assert "ended after" in (tmp_path / "first-contact.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "message"), [(["kernel-fold"], "no such part: kernel-fold"), ([], "no GPU")])
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One error, and nothing is run."""
    device = ["--device", "cpu"] if arguments else []
    assert command.main([*arguments, *device]) == 2
    assert message in capsys.readouterr().err
