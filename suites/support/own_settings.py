"""Own settings: those that an engine has beside the Scenario's fields, chosen for a Scenario that it offers.

A Scenario's seed chooses them, so that a draw for an engine without settings stays what it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from zerobench.scenario import Scenario
from zerobench.subject import Subject

#: Settings at once: a pair may go wrong where each by itself does not.
MOST = 2
#: The seeds from here on choose settings, so that a failure shrinks to a Scenario without them.
FIRST = 12
#: The share of the Scenarios with shards of the gradients in which these are reduced once in a step.
_REDUCES_ONCE = 0.3


def set_up(subject: type[Subject], scenario: Scenario) -> Scenario:
    """The Scenario with a norm's type, a way to save and up to two settings that the engine offers with it.

    With shards of the gradients a schedule of one reduction is an engine's own: the reference engine has none, so that
    no draw has it.
    """
    if scenario.seed < FIRST:
        return scenario
    chosen = random.Random(scenario.seed)  # noqa: S311 - draws of a test
    clips = scenario.clip or scenario.dtype == "fp16"
    norm_type = chosen.choice(subject.norm_types) if clips else "2"
    saving = chosen.choice(["", *subject.savings]) if scenario.resumes else ""
    found = _first_offered(subject, [scenario.but(norm_type=norm_type), scenario])
    found = _first_offered(subject, [found.but(saving=saving), found])
    offered = [name for name in subject.settings if subject.not_offered(found.but(settings=(name,))) is None]
    for name in chosen.sample(offered, min(len(offered), chosen.randint(0, MOST))):
        found = _first_offered(subject, [found.but(settings=(*found.settings, name)), found])
    reduces_once = scenario.schedule == "auto" and scenario.stage > 1 and scenario.accumulation > 1
    if reduces_once and chosen.random() < _REDUCES_ONCE:
        return _first_offered(subject, [found.but(schedule="boundary"), found])
    return found


def _first_offered(subject: type[Subject], scenarios: Iterable[Scenario]) -> Scenario:
    """The last one if the engine offers none."""
    for each in scenarios:
        if subject.not_offered(each) is None:
            return each
    return each
