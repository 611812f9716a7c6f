"""An installed zerobench, as a wheel and editable, adds one import name and works beside a project's own modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from zerobench.suites.support.checkout import ROOT

#: A project's own modules under the names of the checkout's folders; importing one ends the program.
_OWN = ("engine.py", "kernels/__init__.py", "suites/__init__.py", "reports/__init__.py", "noxfile.py")
_NEVER = "raise SystemExit(f'{__file__} was imported')\n"
_SUBJECT = "from zerobench.subjects.reference import Reference\n\n\nclass Mine(Reference):\n    name = 'mine'\n"


@pytest.fixture(scope="module", params=["wheel", pytest.param("editable", marks=pytest.mark.slow)])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment into which only zerobench is installed.

    A path file borrows the dependencies from this environment. Python does not follow the path files of a borrowed
    folder, so an editable installation of the checkout stays invisible.
    """
    place = tmp_path_factory.mktemp(request.param)
    venv.create(place / "environment", with_pip=False)
    fresh = place / "environment" / "bin" / "python"
    [packages] = (place / "environment" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    if request.param == "wheel":
        run(place, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(ROOT))
        what = [str(next(place.glob("zerobench-*.whl")))]
    else:
        what = ["--no-build-isolation", "--editable", str(ROOT)]
    pip = [sys.executable, "-m", "pip", "--python", str(fresh), "install", "--quiet", "--no-deps", "--no-index"]
    run(place, *pip, "--ignore-installed", *what)
    return fresh


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that has an ``engine.py`` and other names of zerobench's folders, and a subject of its own."""
    for name in _OWN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(_NEVER, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("LOADED = True\n", encoding="utf-8")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text(_SUBJECT, encoding="utf-8")
    return tmp_path


def run(place: Path, *command: str) -> str:
    """Run a command in ``place``, without PYTHONPATH; returns its standard output."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=place, env=clean, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_one_name_is_importable(python: Path, tmp_path: Path) -> None:
    """Of the checkout's folders only ``zerobench`` is importable, from this installation, with its schema."""
    names = ["engine", "suites", "kernels", "reports", "conftest", "noxfile"]
    program = (
        "import importlib.util as u, pathlib, zerobench\n"
        f"print([name for name in {names} if u.find_spec(name)])\n"
        "print(pathlib.Path(zerobench.__file__).parent)\n"
        "print((pathlib.Path(zerobench.__file__).parent / 'results' / 'schema' / 'results.json').is_file())"
    )
    found, package, schema = run(tmp_path, str(python), "-c", program).splitlines()
    installed = python.parents[1] if "wheel" in str(python) else ROOT
    assert (found, schema) == ("[]", "True")
    assert Path(package).is_relative_to(installed)


def test_run_beside_own_modules(python: Path, project: Path) -> None:
    """``zerobench run`` writes its report in a folder that has the same names."""
    command = [str(python), "-m", "zerobench", "run", "--model", "nano", "--steps", "2", "--stages", "0,3"]
    run(project, *command, "--subjects", "reference")
    results = json.loads((project / "zerobench-report" / "results.json").read_text(encoding="utf-8"))
    assert [case["verdict"] for case in results["cases"]] == ["right", "right", "measured"]
    assert "reference" in (project / "zerobench-report" / "report.md").read_text(encoding="utf-8")


def test_suite_beside_own_modules(python: Path, project: Path) -> None:
    """The suite tests the folder's own engine, under one name for each module."""
    chosen = ["--pyargs", "zerobench.suites.equivalence.test_peers", "-k", "micro_steps_equal"]
    subject = ["--subject", "pkg.mod:Mine", "--hypothesis-profile", "quick", "-p", "no:cacheprovider"]
    told = run(project, str(python), "-m", "pytest", "-q", *chosen, *subject)
    assert "4 passed" in told  # one for each stage
    assert "Scenarios on pkg.mod:Mine" in told


@pytest.mark.slow
def test_kernels_are_built(python: Path, tmp_path: Path) -> None:
    """The native sources lie in the package, and they compile."""
    program = "import zerobench.engine as e; e.prepare_kernels()"
    run(tmp_path, "env", f"ZEROBENCH_CACHE={tmp_path}", str(python), "-c", program)
    assert list(tmp_path.glob("cpu-*.so"))
