"""An engine that offers one stage, one precision or one world size passes the tests that apply, and no other fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from zerobench.subjects.reference import Reference
from zerobench.suites.meta import briefly
from zerobench.suites.meta.narrow import NARROW, Fp32, StageZero, TwoRanks
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

#: A skip by engine: the test, and its reason.
_SKIPPED = {
    StageZero: ("test_stages_agree", "offers only stage 0 of 0, 1, 2, 3: it shards nothing: stage 0 only"),
    Fp32: ("test_dynamic_loss_scale", "it trains in fp32 only"),
    TwoRanks: ("test_world_size_changes_nothing", "offers only world 2 of 1, 2, 4: it needs a world of two ranks"),
}


@pytest.mark.rotating
@pytest.mark.parametrize("engine", NARROW, ids=lambda engine: engine.__name__)
def test_the_equivalence_suite(engine: type[Reference], tmp_path: Path) -> None:
    """No test fails, several pass, and every skip has a reason."""
    skipped = dict(_outcomes(f"{engine.__module__}:{engine.__name__}", tmp_path / "results.xml"))
    passed = [name for name, reason in skipped.items() if reason is None]
    assert len(passed) > 10, skipped
    assert all(reason for reason in skipped.values() if reason is not None), skipped
    test, reason = _SKIPPED[engine]
    assert reason in (skipped[test] or "")


def _outcomes(subject: str, path: Path) -> Iterator[tuple[str, str | None]]:
    """Each test of the suite and the reason for which it is skipped, None if it passes; fails if one fails."""
    profile = ["-p", briefly.__name__, "--hypothesis-profile", briefly.PROFILE, "-p", "no:cacheprovider"]
    suite = ["--subject", subject, "--pyargs", "zerobench.suites.equivalence"]
    command = ["-m", "pytest", "-n", "0", "-q", f"--junitxml={path}", *profile, *suite]
    done = forked.run(*command, cwd=ROOT, env={**outside(), "PYTHONPATH": str(ROOT)}, timeout=forked.LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        skip = case.find("skipped")
        yield case.get("name", "").partition("[")[0], None if skip is None else skip.get("message", "")
