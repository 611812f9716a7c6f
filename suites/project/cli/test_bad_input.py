"""Bad input: one clear line, exit code 2, and nothing is written."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import torch

from zerobench.cli import commands


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "required: COMMAND"),
        ("rnu", "invalid choice: 'rnu'"),
        ("run --model minni", "unknown model 'minni'; did you mean 'mini'?"),
        ("run --subjects torch-dpd", "unknown subject 'torch-dpd'; did you mean 'torch-ddp'?"),
        ("run --subjects ,", "--subjects: expected names between commas"),
        ("run --subjects nowhere.at_all:Engine", "cannot load the subject 'nowhere.at_all:Engine'"),
        ("run --subjects no/such.py:Engine", "'no/such.py:Engine' (ImportError: there is no such file); name an"),
        ("run --subjects json.py:Engine", "(ImportError: another module has the name 'json'; rename the file)"),
        ("run --subjects json:JSONDecoder", "'json:JSONDecoder' is not a subject"),
        ("run --subjects .engine:Engine", "cannot load the subject '.engine:Engine' (TypeError: "),
        ("run --subjects unfinished:Engine", "unfinished:Engine' (SyntaxError: "),
        ("run --subjects mistaken:Engine", "(NameError: name 'missing' is not defined, "),
        ("run --subjects mistaken:Engine", "mistaken.py, line 2); name an importable package.module:Class or a file"),
        ("run --stages 0,4", "unknown stage '4'"),
        ("run --recompute all", "unknown recomputation 'all'"),
        ("run --model vit-tiny --data short", "--data: vit-tiny takes no text"),
        ("run --dtype fp8", "unknown dtype 'fp8'"),
        ("run --device tpu", "unknown device 'tpu'"),
        ("run --ranks 0", "--ranks: expected a whole number of at least 1, got '0'"),
        ("run --steps two", "--steps: expected a whole number of at least 1, got 'two'"),
        ("run --clip -1", "--clip: expected a number of at least 0, got '-1'"),
        ("run --clip nan", "--clip: expected a number of at least 0, got 'nan'"),
        ("run --data no/such/file", "cannot read the data file 'no/such/file'"),
        ("run --model nano --data short", "has 1 bytes, and a sample takes 33; give a text of at least 330 bytes"),
        ("run --data empty", "the text is too short"),
        ("run --out short", "cannot write to 'short': 'short' is not a directory"),
        ("run --out short/below", "cannot write to 'short/below'"),
        ("run --out taken", "its 'report.md' is a directory"),
        ("run --stage 3", "unrecognized arguments: --stage 3"),
        ("replay {", "a Scenario must be a JSON object"),
        ("replay '{\"stge\": 3}'", "unknown field of scenario 'stge'; did you mean 'stage'?"),
        ("replay '{\"steps\": 0}'", "scenario.steps: expected at least 1, got 0"),
        ("replay '{\"stage\": 9}'", "scenario.stage: expected 0 to 3, got 9"),
        ("replay {} --subject nobody", "unknown subject 'nobody'"),
        ("replay {} --against-subject nobody", "unknown subject 'nobody'"),
        ("replay {} --parts loses", "unknown part 'loses'; did you mean 'losses'?"),
        ("replay {} --bytes trafic", "unknown account 'trafic'; did you mean 'traffic'?"),
    ],
)
def test_bad_input(
    arguments: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear line, exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("too short")
    Path("empty").touch()
    Path("taken/report.md").mkdir(parents=True)
    Path("unfinished.py").write_text("class Engine(\n")
    Path("json.py").write_text("class Engine: ...\n")
    Path("mistaken.py").write_text("def made():\n    return missing\n\n\nEngine = made()\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code = commands.main(shlex.split(arguments))
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert output.err.startswith("zerobench: ")
    assert output.err.count("\n") == 1
    assert says in output.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_no_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--device cuda without a GPU is bad input like any other."""
    monkeypatch.chdir(tmp_path)
    assert commands.main(["run", "--device", "cuda"]) == 2
    assert "torch sees no CUDA GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
