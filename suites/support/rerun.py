"""Rerun: the end of a failure's message if only its own test can find the fault again."""

from __future__ import annotations

import os
import shlex
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from zerobench.errors import Disagreement
from zerobench.scenario import Scenario
from zerobench.suites.support import covering


def named(test: Any) -> AbstractContextManager[Any]:
    """Inside, this test is the present one, for messages; for a program that runs it without pytest."""
    file = test.__module__.removeprefix("zerobench.").replace(".", "/")
    return mock.patch.dict(os.environ, PYTEST_CURRENT_TEST=f"{file}.py::{test.__name__} (call)")


def error_of_test(found: Any, scenario: Scenario, subject: str) -> Disagreement:
    """The error of the present test, whose Scenario shows ``found``."""
    return Disagreement(f"{found}\n{pytest_command(scenario, subject)}", found)


def pytest_command(scenario: Scenario, subject: str) -> str:
    """The Scenario, and the command that runs the present test again, from any folder."""
    path, _, test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    module = "zerobench.suites." + path.rpartition("suites/")[2].removesuffix(".py").replace("/", ".")
    seed = ["--seed", str(covering.SEED)] if covering.SEED else []
    command = shlex.join(["pytest", "--pyargs", f"{module}::{test}", "--subject", subject, *seed])
    return f"  scenario  {scenario.to_json()}\n  reproduce {command}"
