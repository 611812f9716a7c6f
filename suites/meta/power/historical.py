"""The table of historical bugs, from the catalogue and the records."""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.subject import Subject
from zerobench.suites.meta.mutants.historical.bug import BUGS, Bug
from zerobench.suites.meta.mutants.historical.catalogue import HISTORICAL
from zerobench.suites.meta.power.catching import JUDGES_NUMBERS
from zerobench.suites.meta.power.records import Record, Records

_INTRODUCTION = """
`suites/meta/mutants/historical` has {count} wrong engines. Each has a bug that a released engine had, as a mutant of
the reference engine or, if the bug cannot live there, of torch DDP. `suites/meta/test_historical.py` demands that the
named property catches it with the draws of the default profile, and that the failure names the place of the fault.

The column *Scenarios* has the number of Scenarios that the property ran until it failed, with seed 0. The column
*without bits* has this number for the same engine without its promise of bits, over the properties of every engine in
their order; `escapes` means that none of them failed. It is empty for an engine that promises no bits, and for one
whose numbers are right. This command tries the engines that have no record yet, and writes the table:

```
nox --no-venv -s historical
```

"""
_HEAD = """| bug | engine | source | property | Scenarios | without bits |
| --- | --- | --- | --- | --- | --- |
"""
_SHARE = """
Without their promise of bits the properties of every engine catch {caught} of {tried}, {share:.1f} %. The rest:

"""
#: Why no property of every engine fails, by the mutant.
ESCAPES: dict[str, str] = {
    "AddsInTheWireDtype": "without a promise of bits a sum may have the dtype of communication; most backends add so.",
}


def part() -> str:
    """The table and the share, in Markdown, without the title."""
    records = Records()
    rows = "".join(_row(mutant, records) for mutant in HISTORICAL)
    return _INTRODUCTION.format(count=len(HISTORICAL)) + _HEAD + rows + _share(records)


def weakened() -> Iterator[type[Subject]]:
    """The engines that are wrong in their numbers and promise bits: those that are tried without the promise."""
    return (each for each in HISTORICAL if each.promises_bits and BUGS[each].caught_by in JUDGES_NUMBERS)


def _row(mutant: type[Subject], records: Records) -> str:
    bug, tried = BUGS[mutant], records.of(mutant.__name__, "bits")
    weak = _scenarios(records.of(mutant.__name__, "none")) if mutant in set(weakened()) else ""
    cells = [_story(mutant, bug), bug.engine, _links(bug), f"`{bug.caught_by}`", _scenarios(tried), weak]
    return f"| {' | '.join(cells)} |\n"


def _story(mutant: type[Subject], bug: Bug) -> str:
    return f"`{mutant.__name__}`: {bug.story}"


def _links(bug: Bug) -> str:
    return ", ".join(f"[{each}](https://github.com/{each.replace('#', '/issues/')})" for each in bug.references)


def _scenarios(record: Record | None) -> str:
    if record is None:
        return "not tried"
    return str(record.scenarios) if record.property else "escapes"


def escaped(records: Records) -> list[str]:
    """The engines that no property of every engine catches."""
    found = (records.of(each.__name__, "none") for each in weakened())
    return [record.mutant for record in found if record is not None and not record.property]


def _share(records: Records) -> str:
    tried = sum(records.of(each.__name__, "none") is not None for each in weakened())
    if not tried:
        return ""
    missed = escaped(records)
    caught = tried - len(missed)
    listed = "".join(f"- `{name}`: {ESCAPES.get(name, 'not known why')}\n" for name in missed)
    return _SHARE.format(caught=caught, tried=tried, share=100 * caught / tried) + listed
