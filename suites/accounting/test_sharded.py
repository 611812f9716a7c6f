"""Stage 3: a parameter is whole only while it is used, and the model never is."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume

from zerobench import subjects
from zerobench.driver import start
from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.accounting import costs, grid
from zerobench.suites.accounting.ledger import demand, ledgers, offered, offers
from zerobench.suites.support.covering import among
from zerobench.suites.support.strategies import UNDISTURBED, USUAL_STEPS, drawn, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.theory.layout import units, whole
from zerobench.theory.touches import events
from zerobench.workload import models
from zerobench.workload.data import DTYPES, leaf, seed_leaf


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.SHARDED.values(), ids=grid.SHARDED)
def test_no_whole_parameter_remains(reference: Trials, scenario: Scenario) -> None:
    """After a backward, a step and an evaluation no sharded parameter has memory; after a forward only those that it
    used last, or held to its end, have."""
    allowed = {"forward": _in_use_at_the_end(scenario)}
    by_rank = reference.ask(ReplayCommand(scenario, reference.name), _live)
    for rank, seen in enumerate(by_rank):
        for index, (moment, names) in enumerate(seen):
            entry = Entry("whole", f"parameters whole after {moment}, moment {index}", moment)
            surplus = sorted(names - allowed.get(moment, set()))
            demand(reference, scenario, rank, entry, surplus, [], "resharded after use")


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.SHARDED.values(), ids=grid.SHARDED)
def test_the_model_is_never_whole(reference: Trials, scenario: Scenario) -> None:
    """At every collective of a step, whole parameters take fewer bytes than the model's, and at most those of the three
    largest units, the prefetched and the persistent ones."""
    cut, size = units(scenario, models.build(scenario)), DTYPES[scenario.dtype].itemsize
    largest = sorted(unit.padded for unit in cut if not unit.persistent)[-3:]
    persistent = whole(unit for unit in cut if unit.persistent)
    bound = size * (sum(largest) + scenario.prefetch_bucket + persistent)
    everything = size * whole(cut)
    for ledger in ledgers(reference, scenario, "peaks"):
        for step, peak in enumerate(ledger.parameter_peaks):
            entry = Entry("whole", f"{peak} bytes of parameters whole at once in step {step}", step=step)
            formula = f"bound: {bound} = largest units + prefetch + persistent; the model: {everything}"
            demand(reference, scenario, ledger.rank, entry, peak <= bound and peak < everything, True, formula, "peaks")


@drawn(scenarios(stage=3, world=among("world", 2, 3, 4), **UNDISTURBED, **USUAL_STEPS), share=0.1, of_others=0.4)
def test_peak_of_parameters(counted: Trials, scenario: Scenario) -> None:
    """For all models and settings, the peak of whole parameters follows from the order of touches: a parameter counts
    if it is in use, kept by ``max_live``, prefetched, persistent, or wanted by another rank. The meter looks at
    collectives, which one rank has none of."""
    offered(counted, Scenario(stage=3), costs.peaks)
    assume(offers(counted, scenario, costs.peaks))
    costs.peaks(counted, scenario)


def _live(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[tuple[str, set[str]]]:
    """The sharded parameters that have memory after each call of two steps and an evaluation, on one rank."""
    subject = start(subjects.load(name), scenario, group)
    assert isinstance(subject, Reference)
    engine, sharded = subject.engine, _sharded(scenario)
    named = {name: p for name, p in subject.model.named_parameters() if name in sharded}
    seen = []

    def look(moment: str) -> None:
        seen.append((moment, {name for name, p in named.items() if p.untyped_storage().nbytes()}))

    look("building")
    for step in range(2):
        for micro_step in range(scenario.accumulation):
            at = micro_step * scenario.world + dist.get_rank(group)
            seed_leaf(scenario, step, at)
            loss = engine(**leaf(scenario, step, at))
            look("forward")
            engine.backward(loss)
            look("backward")
            engine.step()
            look("step")
    with torch.no_grad():
        engine(**leaf(scenario, 0, 0))
    look("evaluation")
    subject.close()
    return seen


def _sharded(scenario: Scenario) -> set[str]:
    cut = units(scenario, models.build(scenario))
    return {name for unit in cut if not unit.persistent for name in unit.members}


def _in_use_at_the_end(scenario: Scenario) -> set[str]:
    """Parameters in the units that a forward holds to its end, or used last."""
    model = models.build(scenario)
    sharded = _sharded(scenario)
    happening = events(scenario, model, route=False)
    forward = [e for e in happening[: [e.kind for e in happening].index("turn")] if sharded.intersection(e.names)]
    used = {name for e in forward if e.kind == "keep" or e is forward[-1] for name in e.names}
    return {name for unit in units(scenario, model) if used.intersection(unit.members) for name in unit.members}
