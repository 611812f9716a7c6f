"""Released engines: every property that binds every engine, over many seeds, by ``zerobench conform``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from zerobench.conform import running, verdicts
from zerobench.suites.meta.power import journal, page
from zerobench.suites.meta.power.seeds import PUBLISHED, Seed, recorded

_SUBJECTS = ("torch-ddp", "torch-zero1", "torch-fsdp2")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run each engine with each seed that has no record yet, and write the table; end with 1 if a finding is not
    known."""
    given = parser().parse_args(arguments)
    done = {(each.engine, each.seed) for each in recorded(given.out)}
    for seed in range(1, given.seeds + 1):
        for subject in given.subjects:
            if (subject, seed) not in done:
                found = examine(subject, given.profile, seed)
                journal.add(given.out, found)
                told = ", ".join(found.unknown) or "no finding that is not known"
                print(f"{subject}, seed {seed}: {found.scenarios} Scenarios, {told}", flush=True)
    page.write()
    raise SystemExit(any(each.unknown for each in recorded(given.out)))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="power released", description="Try every property on released engines.")
    made.add_argument("--subjects", nargs="+", default=_SUBJECTS, metavar="SUBJECT", help="(default: %(default)s)")
    made.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds 1 to N (default: 20)")
    made.add_argument("--profile", default="quick", help="of Hypothesis (default: quick)")
    made.add_argument("--out", type=Path, default=PUBLISHED, metavar="FILE", help="the record, which is continued")
    return made


def examine(subject: str, profile: str, seed: int) -> Seed:
    """The verdicts of one engine with the draws of a seed.

    Raises:
        SystemExit: no Scenario ran.
    """
    with tempfile.TemporaryDirectory() as folder:
        shard = running.examine(subject, profile, Path(folder), [f"--seed={seed}"])
    (engine,) = verdicts.compose([shard])["engines"]
    properties = engine["properties"]
    ran = sum(cell["run"] for each in properties for cell in each["cells"])
    if not ran:
        raise SystemExit(f"{subject}, seed {seed}: no Scenario ran; see the output of pytest above")
    unknown = [each["name"] for each in properties if each["verdict"] == verdicts.FINDING]
    own = next(
        (version for name, version in engine["versions"].items() if name != "torch"), engine["versions"]["torch"]
    )
    return Seed(subject, own, profile, seed, ran, [each["slug"] for each in engine["known"]], unknown)
