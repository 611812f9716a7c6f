"""Bugs that released engines had: the property that is named for each catches it in the default profile."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zerobench.ranks import Pool
from zerobench.suites.meta.demand import demand_caught
from zerobench.suites.meta.mutants import historical
from zerobench.suites.meta.mutants.historical.bug import BUGS
from zerobench.suites.meta.mutants.historical.catalogue import HISTORICAL
from zerobench.suites.meta.power import page
from zerobench.suites.meta.power.catching import PROPERTIES, catch
from zerobench.suites.meta.power.historical import ESCAPES, escaped, weakened
from zerobench.suites.meta.power.records import Records
from zerobench.suites.support.trials import Trials

#: The others are mutants of other modules, which test_mutants.py tries, too.
_OWN = [mutant for mutant in HISTORICAL if mutant.__module__.startswith(historical.__name__)]


@pytest.mark.rotating
@pytest.mark.parametrize("mutant", _OWN, ids=lambda mutant: mutant.__name__)
def test_historical_bug_is_caught(pool: Pool, mutant: Any) -> None:
    """The property named in its citation fails, and the message points at the fault."""
    _demand_caught(pool, mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [each for each in HISTORICAL if each not in _OWN], ids=lambda each: each.__name__)
def test_cited_mutant_is_caught(pool: Pool, mutant: Any) -> None:
    """The property named in its citation fails, and the message points at the fault."""
    _demand_caught(pool, mutant)


def _demand_caught(pool: Pool, mutant: Any) -> None:
    trials = Trials.of(pool, mutant)
    caught = catch(trials, BUGS[mutant].caught_by)
    demand_caught(trials, mutant, None if caught is None else caught.failure)


def test_every_bug_has_a_source() -> None:
    """A citation names a repository and a number, an engine, one sentence and a property that exists."""
    for mutant, bug in BUGS.items():
        assert bug.references, mutant
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", each) for each in bug.references), bug.references
        assert bug.engine
        assert bug.story.endswith("."), bug.story
        assert bug.caught_by in PROPERTIES


def test_every_bug_is_tried() -> None:
    """Every bug has a record, and the page shows it; if not, ``nox -s historical`` tries and writes it."""
    records = Records()
    assert all(records.of(mutant.__name__, "bits") for mutant in HISTORICAL)
    assert all(records.of(mutant.__name__, "none") for mutant in weakened())


def test_every_escape_is_understood() -> None:
    """The table has the reason of each bug that no property of every engine catches, and of no other."""
    assert set(escaped(Records())) == set(ESCAPES)


@pytest.mark.parametrize("title", page.PARTS)
def test_the_page_has_the_records(title: str) -> None:
    """Each part of the page that is made from records is what they make."""
    assert page.written(title) == page.PARTS[title]()


def test_names_are_unique() -> None:
    """A record has the name of a mutant, without its module."""
    names = [mutant.__name__ for mutant in HISTORICAL]
    assert len(set(names)) == len(names)
