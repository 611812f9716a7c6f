"""A subject in a file: it needs no package, and its folder is searched for what it imports."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from zerobench import subjects
from zerobench.cli import commands
from zerobench.meters import resident_states
from zerobench.scenario import Scenario
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_MINE = """
from beside import STEPS
from zerobench.subjects.reference import Reference

class Mine(Reference):
    name = "mine"
"""


@pytest.mark.parametrize("whole", [False, True])
def test_subject_of_a_file(tmp_path: Path, whole: bool) -> None:
    """Each rank loads it, by a path from the working directory or a whole one."""
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "mine.py").write_text(_MINE)
    (folder / "beside.py").write_text("STEPS = 2\n")
    given = str(folder / "mine.py") if whole else "engines/mine.py"
    command = "-m", "zerobench", "replay", '{"steps": 2}', "--subject", f"{given}:Mine"
    done = forked.run(*command, cwd=tmp_path, env={**outside(), "PYTHONPATH": str(ROOT)}, timeout=forked.LIMIT)
    assert done.returncode == 0, done.stderr
    assert "engines/mine.py:Mine: right, bit for bit" in done.stdout


_UNFINISHED = """
from zerobench.subject import Policies, Subject
from zerobench.subjects.torch_ddp import TorchDdp

class Lacks(Subject):
    name = "lacks"

class OfAnObject(TorchDdp):
    def unsupported(self, scenario):
        return None

class Static(TorchDdp):
    @staticmethod
    def unsupported(scenario):
        return None

class SaysFalse(TorchDdp):
    @classmethod
    def unsupported(cls, scenario):
        return False

class PoliciesInADict(TorchDdp):
    policies = {"masters_from": "rounded"}

class OneSetting(TorchDdp):
    settings = "bucket"
"""


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ("Lacks", "lacks __init__(), evaluate(), gradients(), micro_step(), "),
        ("OfAnObject", "has an unsupported() that is no class method; put @classmethod above it"),
        ("SaysFalse", "SaysFalse.unsupported() returned False; return None if the engine offers the Scenario"),
        ("PoliciesInADict", "has policies of type dict; give zerobench.subject.Policies(...)"),
        ("OneSetting", "has settings 'bucket'; give a tuple of strings, such as ('bucket',)"),
    ],
)
def test_an_unfinished_class(
    subject: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is wrong with it, before a rank starts."""
    file = tmp_path / f"unfinished_{subject.lower()}.py"
    file.write_text(_UNFINISHED)
    monkeypatch.syspath_prepend(tmp_path)
    assert commands.main(["replay", "{}", "--subject", f"{file}:{subject}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("zerobench: ")
    assert told.count("\n") == 1
    assert says in told


def test_a_static_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``unsupported()`` needs no class."""
    (tmp_path / "static.py").write_text(_UNFINISHED)
    monkeypatch.syspath_prepend(tmp_path)
    assert subjects.load(f"{tmp_path / 'static.py'}:Static").not_offered(Scenario()) is None


@pytest.mark.parametrize(
    ("method", "result", "says"),
    [
        ("micro_step", "1.0", "micro_step of torch-ddp returned a value of type float; expected the detached loss"),
        ("step", "None", "step of torch-ddp returned None; expected a zerobench.subject.Outcome"),
        ("optimizer_state", "{'w': {'step': 3}}", "step is of type int; expected a tensor"),
        ("parameters", "[]", "expected values by name in a dict, got a list"),
    ],
)
def test_a_wrong_result(method: str, result: str, says: str, tmp_path: Path) -> None:
    """The first line of the failure says what the method returned and what is expected."""
    file = tmp_path / "returns.py"
    body = f"def {method}(self, *given): super().{method}(*given); return {result}"
    file.write_text(f"from zerobench.subjects.torch_ddp import TorchDdp\nclass Mine(TorchDdp):\n    {body}\n")
    command = "-m", "zerobench", "replay", '{"steps": 1}', "--subject", "returns.py:Mine"
    done = forked.run(*command, cwd=tmp_path, env={**outside(), "PYTHONPATH": str(ROOT)}, timeout=forked.LIMIT)
    assert done.returncode == 1, done.stderr
    assert says in done.stderr.splitlines()[0]


@pytest.mark.parametrize("given", [{"parameters": []}, {"parameters": [], "gradients": [], "optimizer": [], "b": []}])
def test_other_residents(given: dict[str, list[Tensor]]) -> None:
    """``resident()`` names the three states, and no others."""
    with pytest.raises(TypeError, match=r"resident\(\) gave 'parameters'.*; expected tensors by gradients, optimizer"):
        resident_states(given)
