"""The project's sessions, each in an environment of its own; nox passes arguments after ``--`` to the tool.

``nox --no-venv`` takes the installed packages of the Python that runs nox: on a machine without a package index.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "typing", "tests"]

BASELINE = "reports/baselines/cpu.json"
BENCH = "zerobench-bench"


@nox.session
def tests(session: nox.Session) -> None:
    """Run every suite but the benchmarks."""
    _python(session, "-m", "pytest", *session.posargs)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run every test and every mutant, with twenty times the draws of each property, with new draws each time."""
    _python(session, "-m", "pytest", "--slow", "--hypothesis-profile", "thorough", *session.posargs)


@nox.session
def equivalence(session: nox.Session) -> None:
    """Run the equivalence suite, on another engine with ``-- --subject NAME``."""
    _python(session, "-m", "pytest", "suites/equivalence", *session.posargs)


@nox.session
def accounting(session: nox.Session) -> None:
    """Compare bytes held and moved with the closed forms."""
    _python(session, "-m", "pytest", "suites/accounting", *session.posargs)


@nox.session
def kernels(session: nox.Session) -> None:
    """Compare the native kernels with their definitions, bit for bit; without arguments, check their memory as well."""
    _python(session, "-m", "pytest", "suites/kernels", *session.posargs)
    if not session.posargs:
        _python(session, "-m", "pytest", "-n", "0", "suites/kernels/memcheck.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmark suites, in minutes with ``-- --quick``."""
    _bench(session, BENCH, "suites/bench", *session.posargs)


@nox.session
def gpu_bench(session: nox.Session) -> None:
    """Measure this machine's GPU part by part, from where the last session ended, and write its report; arguments
    after ``--`` name parts."""
    told = _python(session, "-c", "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name())")
    name = told.strip().splitlines()[-1]  # what torch says about its import comes before it
    if name == "False":
        session.skip("no GPU here: torch.cuda.is_available() is False")
    folder = f"reports/{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"
    _python(session, "-m", "zerobench.suites.bench.gpu", "--out", folder, *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Render the results of the bench session, or the named ones: ``-- RESULTS... --out DIR``."""
    named = session.posargs or [f"{BENCH}/benchmark.json", "--out", BENCH]
    _python(session, "-m", "zerobench", "report", *named)


@nox.session
def gate(session: nox.Session) -> None:
    """Gate against the CPU baseline; without arguments, put the gate itself to a long test as well."""
    _python(session, "-m", "zerobench", "gate", "--baseline", BASELINE, *session.posargs)
    if not session.posargs:
        _python(session, "-m", "pytest", "-n", "0", "-rP", "suites/meta/gate/real_gate.py")


@nox.session
def mutants(session: nox.Session) -> None:
    """Try equivalence and accounting on edits of the engine's source, from where the last session ended; a sample with
    ``-- --sample 100``."""
    _python(session, "-m", "zerobench.suites.meta.automatic", *session.posargs)


@nox.session
def historical(session: nox.Session) -> None:
    """Try the bugs that released engines had, from where the last session ended, and write their table."""
    _python(session, "-m", "zerobench.suites.meta.power", "historical", *session.posargs)


@nox.session
def alarms(session: nox.Session) -> None:
    """Try engines that are right and different over twenty seeds, from where the last session ended."""
    _python(session, "-m", "zerobench.suites.meta.power", "alarms", *session.posargs)


@nox.session
def released(session: nox.Session) -> None:
    """Try released engines over twenty seeds, from where the last session ended."""
    _python(session, "-m", "zerobench.suites.meta.power", "released", *session.posargs)


@nox.session
def findings(session: nox.Session) -> None:
    """Run the reproducer of every known finding, or of those below ``-- reports/findings/ENGINE``."""
    found = _python(session, "-c", "import importlib.util as u; print(u.find_spec('deepspeed') is not None)")
    for reproducer in sorted(Path(*session.posargs[:1] or ["reports/findings"]).rglob("run.py")):
        if "deepspeed" in reproducer.parts and found.strip() == "False":
            session.warn(f"{reproducer}: DeepSpeed is not installed")
        else:
            _python(session, str(reproducer), success_codes=[1])


@nox.session
def peers(session: nox.Session) -> None:
    """Run the tests that need the packages of the other engines, those that are installed."""
    exchanged = [f"suites/api/checkpoint/test_deepspeed{part}.py" for part in ("", "_settings", "_universal")]
    _python(session, "-m", "pytest", *exchanged, "suites/meta/test_peers.py")
    resumes = ["suites/equivalence/test_resume.py", "suites/equivalence/test_resume_elsewhere.py"]
    _python(session, "-m", "pytest", *resumes, "--subject", "deepspeed-universal")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, and which module imports which."""
    _python(session, "-m", "ruff", "check", *session.posargs)
    _python(session, "-m", "ruff", "format", "--check", *session.posargs)
    _python(session, "-c", "from importlinter.cli import lint_imports_command as lint; lint()")


@nox.session
def typing(session: nox.Session) -> None:
    """Check types."""
    _python(session, "-m", "mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Run the commands and the examples of the pages."""
    _python(session, "-m", "pytest", "suites/project/docs", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the source distribution and the wheel."""
    _python(session, "-m", "build", "--no-isolation", *session.posargs)


def _bench(session: nox.Session, folder: str, *arguments: str) -> None:
    """In one process, because two would disturb each other's times."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    _python(session, "-m", "pytest", "-n", "0", f"--benchmark-json={folder}/benchmark.json", *arguments)


def _python(session: nox.Session, *arguments: str, success_codes: Sequence[int] = (0,)) -> str:
    """Run Python with the project installed; show its output, or return it if the program is given by ``-c``."""
    if session.virtualenv.is_sandboxed:
        session.install("-e", ".[dev]")
    python = "python" if session.virtualenv.is_sandboxed else sys.executable
    return str(session.run(python, *arguments, silent=arguments[0] == "-c", success_codes=success_codes))
