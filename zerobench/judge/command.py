"""ReplayCommand: the end of a failure's message, which has the Scenarios and the command that finds the fault again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.scenario import Scenario

#: The accounts of a ledger, by the names that ``--bytes`` takes.
Account = Literal["states", "traffic", "received", "offload", "peaks", "hidden", "growth", "unreduced"]


@dataclass(frozen=True)
class ReplayCommand:
    """One comparison of a subject in a Scenario; ``str()`` is the end of the message.

    By default a subject is judged by the oracles. With other ``parts`` than all, these must have the canonical
    trainer's bits; with ``against`` or ``against_subject``, those of another run, and with ``saved_by`` those of the
    run that nothing interrupts. With ``account`` the bytes are held to their closed form, with ``bound`` the gradients
    to the rounding bound of their sum, and with ``each_step`` every step to the state that the engine had before it.
    """

    scenario: Scenario
    subject: str
    parts: tuple[Part, ...] = ALL_PARTS
    against: Scenario | None = None  # None: the same
    against_subject: str | None = None  # None: the same
    account: Account | None = None
    bound: bool = False
    beside: Scenario | None = None  # another engine of the subject trains this one by turns, in the same processes
    each_step: bool = False
    zeros_alike: bool = False  # -0 is +0, and a gradient of zeros may be missing if the subject takes them for the same
    saved_by: Scenario | None = None  # the run begins with the state that the subject saved after this one

    @property
    def other(self) -> tuple[str, Scenario] | None:
        """The subject and the Scenario of the other run, if there is one."""
        if self.against is None and self.against_subject is None:
            return None
        return self.against_subject or self.subject, self.against or self.scenario

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``zerobench``."""
        options: dict[str, str | None] = {
            "--subject": self.subject,
            "--against": None if self.against is None else self.against.to_json(),
            "--against-subject": self.against_subject,
            "--parts": None if self.parts == ALL_PARTS else ",".join(self.parts),
            "--bytes": self.account,
            "--beside": None if self.beside is None else self.beside.to_json(),
            "--saved-by": None if self.saved_by is None else self.saved_by.to_json(),
        }
        flags = {"--bound": self.bound, "--each-step": self.each_step, "--zeros-alike": self.zeros_alike}
        given = [each for option, value in options.items() if value is not None for each in (option, value)]
        return ["replay", self.scenario.to_json(), *given, *(flag for flag, is_given in flags.items() if is_given)]

    def __str__(self) -> str:
        others = {"against  ": self.against, "beside   ": self.beside, "saved by ": self.saved_by}
        against = [f"  {name} {each.to_json()}" for name, each in others.items() if each is not None]
        command = f"  reproduce {shlex.join(['zerobench', *self.arguments])}"
        return "\n".join([f"  scenario  {self.scenario.to_json()}", *against, command])


def between(
    got: tuple[str, Scenario], expected: tuple[str, Scenario] | None = None, parts: tuple[Part, ...] = ALL_PARTS
) -> ReplayCommand:
    """The command that compares two runs, each a subject in a Scenario; None: the canonical trainer's."""
    (subject, scenario), (other, another) = got, expected or got
    elsewhere = None if another == scenario else another
    named = expected is not None and (other != subject or elsewhere is None)
    return ReplayCommand(scenario, subject, parts, elsewhere, other if named else None)
