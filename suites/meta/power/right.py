"""The table of right engines, from the record of their runs."""

from __future__ import annotations

from collections.abc import Iterable

from zerobench.subject import Subject
from zerobench.suites.meta.mutants.different import DIFFERENT
from zerobench.suites.meta.power.runs import Run, recorded

_INTRODUCTION = """
The engines of `suites/meta/mutants/different.py` are right, and each is unlike the reference engine in one way. No
property may fail. This command tries each with the seeds 1 to 20, from where the last session ended, and writes the
table:

```
nox --no-venv -s alarms
```

For each seed a property draws `--examples` Scenarios, at each stage if it draws the stages apart; in the runs of the
table {examples}. An engine that promises no bits is held to the properties that need no promise.

"""
_HEAD = """| engine | difference | promise | seeds | Scenarios | false alarms |
| --- | --- | --- | --- | --- | --- |
"""


def part() -> str:
    """The table, in Markdown, without the title."""
    runs = recorded()
    examples = " or ".join(sorted({str(run.examples) for run in runs})) or "none"
    return _INTRODUCTION.format(examples=examples) + _HEAD + "".join(_row(engine, runs) for engine in DIFFERENT)


def _row(engine: type[Subject], runs: Iterable[Run]) -> str:
    mine = [run for run in runs if run.engine == engine.__name__]
    difference = (engine.__doc__ or "").partition(".")[0].replace("\n", " ").replace("; must pass", "")
    promise = "bits" if engine.promises_bits else "none"
    scenarios, alarms = sum(run.scenarios for run in mine), sum(bool(run.failure) for run in mine)
    cells = [f"`{engine.__name__}`", " ".join(difference.split()), promise, len(mine), f"{scenarios:,}", alarms]
    return f"| {' | '.join(map(str, cells))} |\n"
