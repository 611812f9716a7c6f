"""The project's sessions, each in an environment of its own; arguments after ``--`` go on to the tool."""

from __future__ import annotations

import nox

nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "typing", "tests"]


@nox.session
def tests(session: nox.Session) -> None:
    """Run every suite."""
    _install(session)
    session.run("pytest", *session.posargs)


@nox.session
def equivalence(session: nox.Session) -> None:
    """Run the equivalence suite, on another engine with ``-- --subject NAME``."""
    _install(session)
    session.run("pytest", "suites/equivalence", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    _install(session)
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", *session.posargs)


@nox.session
def typing(session: nox.Session) -> None:
    """Check types."""
    _install(session)
    session.run("mypy", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmark suites, in a few minutes with ``-- --quick``."""
    _install(session)
    session.run("pytest", "suites/bench", "--benchmark-json=bench.json", *session.posargs)


def _install(session: nox.Session) -> None:
    session.install("-e", ".[test]")
