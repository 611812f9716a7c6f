"""``zerobench doctor --wheels`` lists all that the suites, the benchmarks and the report import."""

from __future__ import annotations

from importlib import metadata

from zerobench.cli import wheels
from zerobench.suites.project.cli import here


def test_every_package_is_listed() -> None:
    """With the version installed here; torch, and what torch requires, is there already."""
    done = here.run_zerobench("doctor", "--wheels")
    assert done.returncode == 0, done.stderr
    versions = dict(line.split("==") for line in done.stdout.splitlines())
    assert versions.keys() >= {"pydantic", "pydantic-core", "xxhash", "jsonschema", "pandas", "hypothesis", "pytest"}
    assert not versions.keys() & {"torch", "zerobench", "sympy", "filelock", "deepspeed", "ruff"}
    assert versions["xxhash"] == metadata.version("xxhash")


def test_a_requirement_of_a_requirement_counts() -> None:
    """Whatever a listed package requires is listed as well, or comes with torch."""
    listed = {line.partition("==")[0] for line in wheels.needed()}
    known = listed | wheels._closure("torch", ())
    for name in listed:
        assert wheels._closure(name, ()) <= known
