"""Real starts by launchers other than torchrun, each if it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.suites.project.cluster.test_launch import free_port, report
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_RUN = [sys.executable, "-m", "zerobench", "run", "--model", "nano", "--steps", "2", "--stages", "3", "--json"]

#: The output of --version, and the arguments for two ranks on one host; Open MPI makes root ask twice, as in a
#: container.
_MPIRUNS = {"Open MPI": ("Open MPI", ["--oversubscribe", "--bind-to", "none"]), "MPICH": ("HYDRA", [])}


def _mpirun(flavour: str) -> list[str]:
    """The start of a command for two ranks; the environment's own folder of programs comes first, as when activated."""
    beside = str(Path(sys.executable).parent)
    said, options = _MPIRUNS[flavour]
    for folder in [beside, *os.get_exec_path()]:
        found = shutil.which("mpirun", path=folder)
        if found and said in subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout:
            return [found, *options, "-np", "2"]
    pytest.skip(f"no mpirun of {flavour}'s is installed")


def _srun() -> list[str]:
    """The start of a command for two ranks."""
    if not shutil.which("srun"):
        pytest.skip("no srun is installed")
    if "UP" not in subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("no slurmctld answers to srun")
    # Slurm's site default may end all ranks at once, before rank 0 has given the reason.
    return ["srun", "--ntasks", "2", "--kill-on-bad-exit=0", "--immediate=30"]


def _start(launcher: str) -> list[str]:
    return _srun() if launcher == "srun" else _mpirun(launcher)


def _launched(folder: Path, launcher: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The outcome of two ranks."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        [*_start(launcher), *_RUN, *arguments],
        cwd=folder,
        env={**outside(), **root, **meeting},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


_each_launcher = pytest.mark.parametrize("launcher", [*_MPIRUNS, "srun"])


@pytest.mark.slow
@_each_launcher
def test_run(tmp_path: Path, launcher: str) -> None:
    """The launcher's two processes are two ranks of one run; only rank 0 writes, and the code is 0."""
    done = _launched(tmp_path, launcher, "--subjects", "reference")
    assert done.returncode == 0, done.stdout + done.stderr
    assert report(done.stdout)["cases"][0]["judgement"]["bitwise"]
    assert (tmp_path / "zerobench-report" / "results.json").is_file()


@pytest.mark.slow
@_each_launcher
def test_a_subject_that_raises(tmp_path: Path, launcher: str) -> None:
    """If a subject cannot be built, all ranks end; each rank's exception is printed once, and the code is not 0."""
    done = _launched(tmp_path, launcher, "--subjects", "zerobench.suites.project.cli.broken:Raises")
    assert done.returncode != 0
    assert done.stderr.count("zerobench: ranks 0, 1 raised ValueError: the flux is not aligned") == 1
    assert "in __init__" in done.stderr
