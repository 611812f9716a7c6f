"""The table of released engines over many seeds, from the record of their runs."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.suites.meta.power.seeds import Seed, recorded

_INTRODUCTION = """
The suite raises no false alarm about a released engine if each of its findings is real. `zerobench conform` ran the
properties that bind every engine with the seeds 1 to 20 and set aside the Scenarios of
[known findings](../../reports/findings/README.md), which have reproducers without zerobench. The last column has the
number of other findings. This command tries the seeds that have no record yet, and writes the table:

```
nox --no-venv -s released
```

"""
_HEAD = """| engine | version | profile | seeds | Scenarios | known findings met | other findings |
| --- | --- | --- | --- | --- | --- | --- |
"""


def part() -> str:
    """The table, in Markdown, without the title."""
    runs: dict[tuple[str, str, str], list[Seed]] = {}
    for each in recorded():
        runs.setdefault((each.engine, each.version, each.profile), []).append(each)
    return _INTRODUCTION + _HEAD + "".join(_row(*key, seeds) for key, seeds in runs.items())


def _row(engine: str, version: str, profile: str, seeds: Sequence[Seed]) -> str:
    scenarios, known = sum(each.scenarios for each in seeds), {slug for each in seeds for slug in each.known}
    other = sum(len(each.unknown) for each in seeds)
    cells = [engine, version.partition("+")[0], profile, len(seeds), f"{scenarios:,}", len(known), other]
    return f"| {' | '.join(map(str, cells))} |\n"
