"""The flags of ``zerobench replay``."""

from __future__ import annotations

import argparse
from typing import get_args

from zerobench.cli.values import one_of, parts
from zerobench.gate.grid import SUBJECT
from zerobench.judge.command import Account, ReplayCommand
from zerobench.judge.parts import ALL_PARTS
from zerobench.scenario import Scenario


def add_replay(replay: argparse.ArgumentParser) -> None:
    """Add them to the subcommand's parser."""
    replay.description = (
        "Runs a subject in a Scenario and judges it by the oracles, by another run or by closed forms. Exit code 0: it "
        "is right, or does not offer the Scenario; 1: it is wrong; 2: the input."
    )
    add = replay.add_argument
    add("scenario", type=Scenario.from_json, metavar="SCENARIO", help="the Scenario as JSON")
    add("--subject", default=SUBJECT, metavar="NAME", help=f"default: {SUBJECT}")
    add(
        "--against",
        type=Scenario.from_json,
        metavar="SCENARIO",
        help="require the bits of a run in this Scenario; default: the same Scenario",
    )
    add("--against-subject", metavar="NAME", help="require the bits of this subject; default: the same subject")
    add("--parts", type=parts, default=ALL_PARTS, metavar="A,B", help="require the bits of these parts of a step alone")
    add(
        "--beside",
        type=Scenario.from_json,
        metavar="SCENARIO",
        help="let another engine train this one by turns, in the same processes",
    )
    add(
        "--saved-by",
        type=Scenario.from_json,
        metavar="SCENARIO",
        help="begin with the state that the subject saves after this one, and require the bits of an uninterrupted run",
    )
    add("--bound", action="store_true", help="hold the gradients to the rounding bound of their sum")
    add("--each-step", action="store_true", help="hold every step to the state that the engine had before it")
    add("--zeros-alike", action="store_true", help="take -0 for +0")
    add("--bytes", type=one_of("account", get_args(Account)), metavar="ACCOUNT", help=", ".join(get_args(Account)))


def replay_command(given: argparse.Namespace) -> ReplayCommand:
    """The comparison that the options of ``replay`` describe."""
    return ReplayCommand(
        given.scenario,
        given.subject,
        given.parts,
        given.against,
        given.against_subject,
        given.bytes,
        given.bound,
        given.beside,
        given.each_step,
        given.zeros_alike,
        given.saved_by,
    )
