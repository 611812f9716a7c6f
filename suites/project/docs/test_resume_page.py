"""The programs and commands of docs/how-to/save-and-resume.md run as they stand there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from zerobench.cli.commands import main
from zerobench.suites.project.docs.pages import blocks, commands
from zerobench.suites.support import forked
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_PAGE = "docs/how-to/save-and-resume.md"


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run goes on at step 3; the part on background saves follows it; then the commands examine both.

    The weights of the two runs are those of one run of six steps."""
    program, background = (each.text for each in blocks(_PAGE, "python"))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = f"import sys; sys.argv = ['resume.py', 'checkpoints']; directory = 'checkpoints'\n{program}"
    for more, said in (("", "step 0 with {}"), (background, "step 3 with {'seen': 12}")):
        done = forked.run("-c", script + more, cwd=tmp_path, env=env, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"starts at {said}\n"
    monkeypatch.chdir(tmp_path)
    [config] = blocks(_PAGE, "json")
    Path("ds_config.json").write_text(config.text, encoding="utf-8")
    said_by = {}
    for line in commands(_PAGE):
        if line.startswith("zerobench "):
            assert main(shlex.split(line)[1:]) == 0
            said_by["deepspeed" if "deepspeed" in line else line.split()[2]] = capsys.readouterr().out
    assert said_by.keys() == {"inspect", "verify", "export", "deepspeed"}
    assert len(list(Path("for-deepspeed", "global_step6").iterdir())) == 4
    assert "steps       6\n" in said_by["inspect"]
    once = script.replace("range(3)", "range(6)").replace("'checkpoints'", "'once'")
    assert forked.run("-c", once, cwd=tmp_path, env=env, timeout=LIMIT).returncode == 0
    assert main(["checkpoint", "export", "once", "--out", "once.safetensors"]) == 0
    assert Path("once.safetensors").read_bytes() == Path("model.safetensors").read_bytes()
