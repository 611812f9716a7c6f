"""Dependencies: the engine runs without the extras, and a command that needs one says which to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]
#: Distributions that are imported by another name.
_MODULES = {"pytest-benchmark": "pytest_benchmark", "pytest-xdist": "xdist", "pyyaml": "yaml"}
#: Runs a program in which some packages cannot be imported, as if they were not installed.
_WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing}))\n{program}"
_COMMAND = "from zerobench.cli.commands import main; sys.exit(main(sys.argv[1:]))"
#: pytest looks at every package that is installed, so that here they are only not found.
_PYTEST = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name in ("hypothesis", "psutil") else found(name, *of)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def _modules(*extras: str) -> list[str]:
    """What the packages of some extras are imported by."""
    names = [re.split(r"[^\w-]", each)[0] for extra in extras for each in _EXTRAS[extra]]
    return [_MODULES.get(name, name) for name in names]


def _run(directory: Path, missing: list[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT.format(missing=missing, program=program), *arguments]
    env = {**outside(), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_engine_trains_without_the_extras(tmp_path: Path) -> None:
    """The README's example, with none of the packages that reports, suites and development need."""
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    missing = [name for name in _modules("report", "suites", "dev") if name != "zerobench"]
    done = _run(tmp_path, missing, f"exec({example!r}); print(engine.global_steps)")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["run"], 2), (["report", "r.json"], 2), (["compare", "r.json", "r.json"], 3), (["gate", "--baseline", "b"], 3)],
    ids=lambda given: given[0] if isinstance(given, list) else str(given),
)
def test_a_command_without_its_extra(arguments: list[str], code: int, tmp_path: Path) -> None:
    """One line that says what to install, before anything is measured or written."""
    done = _run(tmp_path, _modules("report"), _COMMAND, *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr == (
        "zerobench: not installed: jsonschema, matplotlib, pandas, tabulate; "
        "python -m pip install 'zerobench[report]'\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_suite_without_its_extra() -> None:
    """pytest says what to install in place of the traceback of a conftest."""
    options = ["-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-n", "0", "suites/equivalence"]
    done = _run(ROOT, [], _PYTEST, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "not installed: hypothesis, psutil; python -m pip install 'zerobench[suites]'" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_dev_has_all_that_is_developed_with() -> None:
    """And ``test``, its former name, is the same."""
    assert "zerobench[report,suites]" in _EXTRAS["dev"]
    assert _EXTRAS["test"] == ["zerobench[dev]"]
