"""Rerun: the end of a failure's message if only its own test can find the fault again."""

from __future__ import annotations

import os
import shlex

from zerobench.scenario import Scenario


def pytest_command(scenario: Scenario, subject: str) -> str:
    """The Scenario, and the command that runs the present test again."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    command = shlex.join(["pytest", test, "--subject", subject])
    return f"  scenario  {scenario.to_json()}\n  reproduce {command}"
