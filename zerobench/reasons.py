"""The reason for which a subject does not offer a Scenario, as its author's code gives it."""

from __future__ import annotations

from collections.abc import Callable

from zerobench.errors import UsageError
from zerobench.scenario import Scenario


def reason_of(unsupported: Callable[[Scenario], str | None], scenario: Scenario) -> str | None:
    """What ``unsupported`` of a subject returns.

    Raises:
        UsageError: it is neither None nor a text: a False, taken for a reason, would skip every Scenario.
    """
    found = unsupported(scenario)
    if found is None or (isinstance(found, str) and found):
        return found
    call = f"{unsupported.__qualname__}()"
    raise UsageError(
        f"{call} returned {found!r}; return None if the engine offers the Scenario, else the reason as text"
    )
