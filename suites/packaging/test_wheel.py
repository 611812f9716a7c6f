"""A built wheel works as the checkout does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment into which the wheel, and of the checkout nothing, is installed.

    What zerobench depends on is borrowed from this environment by a path file, which is not followed further, so that
    an editable install of the checkout stays out of sight.
    """
    place = tmp_path_factory.mktemp("wheel")
    _run(place, sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(ROOT))
    [wheel] = place.glob("zerobench-*.whl")
    venv.create(place / "environment", with_pip=True)
    fresh = place / "environment" / "bin" / "python"
    _run(place, str(fresh), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    [packages] = (place / "environment" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return fresh


def _run(place: Path, *command: str) -> str:
    """Run a command in a directory that is not the checkout; its standard output."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=place, env=clean, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_command_runs_from_elsewhere(python: Path, tmp_path: Path) -> None:
    """``zerobench run`` of the installed wheel writes its report, from another directory."""
    command = str(python.parent / "zerobench")
    _run(tmp_path, command, "run", "--model", "nano", "--steps", "2", "--stages", "0,3", "--subjects", "reference")
    results = json.loads((tmp_path / "zerobench-report" / "results.json").read_text(encoding="utf-8"))
    assert len(results["rows"]) >= 2
    assert "reference" in (tmp_path / "zerobench-report" / "report.md").read_text(encoding="utf-8")


def test_it_is_the_wheel_that_runs(python: Path, tmp_path: Path) -> None:
    """The package that runs lies in the fresh environment, with its schema."""
    where = (
        "import zerobench, pathlib; p = pathlib.Path(zerobench.__file__).parent; print(p); print(*p.glob('schema/*'))"
    )
    package, schemas = _run(tmp_path, str(python), "-c", where).splitlines()
    assert package.startswith(str(python.parents[1]))
    assert "results.json" in schemas


def test_kernels_are_built_from_the_wheel(python: Path, tmp_path: Path) -> None:
    """The native sources lie in the engine, nothing of that name beside it, and they compile."""
    where = "import engine, pathlib; print(pathlib.Path(engine.__file__).parents[1]); engine.prepare_kernels()"
    packages = Path(_run(tmp_path, "env", f"ZEROBENCH_CACHE={tmp_path}", str(python), "-c", where).strip())
    assert (packages / "engine" / "kernels" / "dtype.h").is_file()
    assert not (packages / "kernels").exists()
    assert list(tmp_path.glob("cpu-*.so"))


def test_suites_run_from_the_wheel(python: Path, tmp_path: Path) -> None:
    """The suites travel in the wheel: an installed zerobench tests an engine without a checkout."""
    arguments = ["-p", "suites.plugin", "--pyargs", "suites.equivalence.test_peers", "-k", "peers_on_exact_data"]
    assert "passed" in _run(tmp_path, str(python), "-m", "pytest", "-q", *arguments, "-p", "no:cacheprovider")
