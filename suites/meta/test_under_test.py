"""Equivalence, accounting and faults test the engine under test: if it does not run, none of their tests passes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from zerobench.suites.meta import briefly
from zerobench.suites.meta.broken import RaisesWhenBuilt
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_SUITES = [f"zerobench.suites.{name}" for name in ("equivalence", "accounting", "faults")]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ET.Element]:
    """The outcome of every test of these suites, by its name, with an engine that cannot be built."""
    path: Path = tmp_path_factory.mktemp("briefly") / "results.xml"
    subject = ["--subject", f"{RaisesWhenBuilt.__module__}:{RaisesWhenBuilt.__name__}"]
    profile = ["-p", briefly.__name__, "--hypothesis-profile", briefly.PROFILE, "-p", "no:cacheprovider"]
    command = ["-m", "pytest", "-n", "0", "-q", f"--junitxml={path}", *profile, *subject, "--pyargs", *_SUITES]
    done = forked.run(*command, cwd=ROOT, env={**outside(), "PYTHONPATH": str(ROOT)}, timeout=forked.LIMIT)
    assert path.exists(), done.stdout + done.stderr
    found = ET.parse(path).iter("testcase")  # noqa: S314 - pytest wrote it just now
    return {f"{case.get('classname')}.{case.get('name')}": case for case in found}


def test_none_passes(cases: dict[str, ET.Element]) -> None:
    """If a test passes, it tests another engine, and belongs to another suite."""
    assert len(cases) > 30
    assert [name for name, case in cases.items() if not len(case)] == []


def test_a_skip_has_a_reason(cases: dict[str, ET.Element]) -> None:
    """If a test does not apply, it gives the reason."""
    skipped = {name: case.find("skipped") for name, case in cases.items()}
    assert [name for name, skip in skipped.items() if skip is not None and not skip.get("message")] == []


def test_most_fail(cases: dict[str, ET.Element]) -> None:
    """The others fail because the engine cannot be built: few do not apply to an engine that promises the bits."""
    said = [child.get("message", "") for case in cases.values() for child in case if child.tag in ("failure", "error")]
    assert sum("this engine cannot be built" in message for message in said) > len(cases) / 2, said
