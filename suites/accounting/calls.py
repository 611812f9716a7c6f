"""The bytes that each call of a client receives, as a cost."""

from __future__ import annotations

from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.oracles.rules import state_keys
from zerobench.scenario import Scenario
from zerobench.suites.accounting import bounds, within
from zerobench.suites.accounting.ledger import demand_at_most
from zerobench.suites.support.client import offers_edits, offers_returning
from zerobench.suites.support.trials import Trials
from zerobench.workload import models
from zerobench.workload.data import DTYPES


def changing(trials: Trials, scenario: Scenario) -> None:
    """The bytes received by loads, edits, readings and evaluations, and while an engine is closed.

    An evaluation after readings, or after an edit, in an engine that promises bits, receives what the first one does,
    and at most half as much for units that are gathered earlier or later.
    A reading may gather a unit twice: an engine that reads ahead in the model's order, and whose values are read in
    another order, reshards some units before they are read.
    """
    loads = scenario.loads_part or offers_returning(trials.subject, scenario)
    edits = offers_edits(trials.subject, scenario)
    zeroes = trials.offers(scenario.but(gradient_edits=(1,)))
    whole = bounds.fp32(scenario, models.shapes(scenario))
    states = 1 + len(state_keys(scenario.optimizer))
    copies = {
        "loading": (states, "each state once"),
        "an edit": (1, "the model once"),
        "an edit of gradients": (1, "the gradients once"),
        "an evaluation": (DTYPES[scenario.dtype].itemsize / 4, "the model once, in its dtype"),
        "a reading of parameters": (2, "each value twice"),
        "a reading of optimizer state": (2 * (states - 1), "each value twice"),
        "a reading of gradients": (2, "each value twice"),
        "a reading of model parameters": (2, "each value twice"),
        "closing": (0, "no state"),
    }
    if scenario.loads == "model":
        copies["loading"] = (1, "the model once")
    command = ReplayCommand(scenario, trials.name)
    for rank, found in enumerate(trials.ask(command, within.received_by_calls, loads, edits, zeroes)):
        for what, size in found.items():
            call, *later = what.split(" after ")
            count, words = copies[call]
            most = int(count * whole) + (0 if call == "an evaluation" else bounds.AGREEMENT)
            if later and trials.subject.promises_bits:
                most, words = found[call] * 3 // 2, "one and a half times as many as in the first one"
            entry = Entry("traffic", f"{size} bytes received while {what}", what)
            demand_at_most(trials, scenario, rank, entry, size, most, f"{words}, in {what}")
