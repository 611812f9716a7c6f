"""Histories as costs: a step costs the same after a call or a skipped step, and after many steps."""

from __future__ import annotations

from functools import lru_cache

from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.oracles.rules import state_keys
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.suites.accounting import bounds, history
from zerobench.suites.accounting.forms import Form, demand_traffic, less, plus
from zerobench.suites.accounting.history import Between, Call, Costs, History, LongRun
from zerobench.suites.accounting.ledger import demand, demand_at_most
from zerobench.suites.support.trials import Trials
from zerobench.workload import models

_FORMULA = "as in the same step of the same training without the"
#: Bytes of a call that carries flags, counts or the ranks' agreement; these models have tens of parameters.
_MESSAGE = 64
#: What caches of libraries may take in the second half of a long run, which has 25 steps.
_GROWN = {"bytes": 3 << 18, "objects": 200}
#: Steps after which a long run has settled; by the third torch's engines have arranged their buckets.
_EARLY = 3


def after_evaluation(trials: Trials, scenario: Scenario) -> None:
    """The steps of a training with an evaluation before each, beside those without."""
    after(trials, scenario, "evaluation")


def after_evaluation_in_a_step(trials: Trials, scenario: Scenario) -> None:
    """The same with an evaluation between two micro-steps of each step, which sends at most what it does between
    steps."""
    after(trials, scenario, "evaluation in a step")
    within, between = (traced(trials, scenario, each) for each in ("evaluation in a step", "evaluation"))
    for got, other in zip(within, between, strict=True):
        usual = {call.step: call.traffic for call in other.calls}
        for call in (each for each in got.calls if each.step in usual):
            form = Form("at most as between steps", {}, usual[call.step])
            demand_traffic(trials, scenario, got.rank, f"the {call.what}", call.step, call.traffic, form)


def after_reading(trials: Trials, scenario: Scenario) -> None:
    """The same with readings, which have a bound of their own."""
    after(trials, scenario, "reading")


def after_saving(trials: Trials, scenario: Scenario) -> None:
    """The same with saves."""
    after(trials, scenario, "saving")


def after(trials: Trials, scenario: Scenario, between: Between) -> None:
    """The same with any call."""
    plain, other = traced(trials, scenario, "nothing"), traced(trials, scenario, between)
    for expected, got in zip(plain, other, strict=True):
        for call in got.calls:
            _demand_of_call(trials, scenario, got.rank, call)
        for step in range(scenario.steps):
            done = plus(*(call.traffic for call in got.calls if call.step == step))
            form = Form.after_calls(trials, f"{_FORMULA} call", expected.traffic[step], done)
            _demand_step(trials, scenario, expected, got, step, form)


def after_skip(trials: Trials, scenario: Scenario) -> None:
    """The steps of a training with overflows, beside those of the training without: the skipped ones cost no more, and
    the others as much."""
    assert skips(trials, scenario), f"other steps are skipped than those of {scenario.poison}"
    plain, other = traced(trials, scenario.but(poison=()), "nothing"), traced(trials, scenario, "nothing")
    for expected, got in zip(plain, other, strict=True):
        undone: Costs = {}
        for step, skipped in enumerate(got.skipped):
            if skipped:
                late = {} if trials.subject.promises_bits else undone
                form = Form("at most as in the step without the overflow", {}, plus(expected.traffic[step], late))
                demand_traffic(trials, scenario, got.rank, f"step {step}", step, got.traffic[step], form)
                undone = plus(undone, less(expected.traffic[step], got.traffic[step]))
                continue
            form = Form.after_skips(trials, f"{_FORMULA} overflow", expected.traffic[step], undone)
            _demand_step(trials, scenario, expected, got, step, form)
            undone = {}


def after_short_step(trials: Trials, scenario: Scenario) -> None:
    """The step after one that the client ends after its first micro-step, beside that of the training without it."""
    whole = scenario.but(short_steps=())
    found, usual, single = (traced(trials, each, "nothing") for each in (scenario, whole, whole.but(accumulation=1)))
    [(short, _)] = scenario.short_steps
    for got, expected, one in zip(found, usual, single, strict=True):
        form = Form.exactly(f"{_FORMULA} short step", expected.traffic[short + 1])
        _demand_step(trials, scenario, expected, got, short + 1, form)
        if trials.subject.promises_bits:
            form = Form.exactly("as with so many micro-steps", one.traffic[short])
            demand_traffic(trials, scenario, got.rank, "the short step", short, got.traffic[short], form)


def after_rest(trials: Trials, scenario: Scenario) -> None:
    """The steps of a training in which a block rests, beside those of the training without: those in which it rests
    send at most as much, and the others as much."""
    plain, other = (traced(trials, one, "nothing") for one in (scenario.but(frozen_steps=()), scenario))
    for expected, got in zip(plain, other, strict=True):
        for step, usual in enumerate(expected.traffic):
            if step in scenario.frozen_steps:
                form = Form("at most as in the step in which the block trains", {}, usual)
                demand_traffic(trials, scenario, got.rank, f"step {step}", step, got.traffic[step], form)
            else:
                _demand_step(trials, scenario, expected, got, step, Form.exactly(f"{_FORMULA} rest", usual))


def after_forward(trials: Trials, scenario: Scenario) -> None:
    """The steps of a training with further forwards, beside those of the training without, and an evaluation.

    A further forward may free units that the backward would have found whole: no more than half of them. If it has a
    backward, that gathers all of them.
    """
    single = scenario.but(forwards="one")
    found, usual, evaluated = (
        traced(trials, one, between)
        for one, between in ((scenario, "nothing"), (single, "nothing"), (single, "evaluation"))
    )
    for got, expected, other in zip(found, usual, evaluated, strict=True):
        one_more = other.calls[-1].traffic
        gathered = plus(one_more, one_more if scenario.forwards == "two" else _half(one_more))
        further = plus(*[gathered] * scenario.accumulation)
        for step in range(scenario.steps):
            one = expected.traffic[step]
            words = "as with one forward, or more by one and a half evaluations, or by two if a backward follows"
            form = Form(words, one, plus(one, further))
            _demand_step(trials, scenario, expected, got, step, form)


def _half(costs: Costs) -> Costs:
    return {name: Traffic(*(-(-each // 2) for each in (t.calls, t.sent, t.received))) for name, t in costs.items()}


def skips(trials: Trials, scenario: Scenario) -> bool:
    """Whether the engine skips the steps that overflow, and no other one with or without them."""
    plain, *_ = traced(trials, scenario.but(poison=()), "nothing")
    other, *_ = traced(trials, scenario, "nothing")
    return not any(plain.skipped) and other.skipped == [step in scenario.bad_steps for step in range(scenario.steps)]


def long_run(trials: Trials, scenario: Scenario) -> None:
    """Memory after the last step, beside that after three; and the traffic of each later step, beside the fourth's."""
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), history.long_run, _EARLY)):
        for name, early in vars(found.early).items():
            entry = Entry("growth", f"{name} after {scenario.steps} steps, in bytes or numbers", name)
            demand(trials, scenario, rank, entry, vars(found.late)[name], early, f"as after {_EARLY} steps")
        steps = scenario.steps // 2 - _EARLY
        entry = Entry("growth", f"bytes of tensors in reference cycles after {steps} steps", "cycles")
        demand(trials, scenario, rank, entry, found.cycles, 0, "a step frees its tensors without the collector")
        for name, room in _GROWN.items():
            size, before = getattr(found.last, name), getattr(found.half_way, name)
            entry = Entry(
                "growth", f"{size} {name} beside tensors after {scenario.steps} steps", f"{name} beside tensors"
            )
            demand_at_most(trials, scenario, rank, entry, size, before + room, "those half-way, and few")
        _demand_later_steps(trials, scenario, rank, found)


def _demand_later_steps(trials: Trials, scenario: Scenario, rank: int, found: LongRun) -> None:
    first, *others = (step for step in found.traffic if step >= _EARLY)
    for step in others:
        form = Form.after_calls(trials, f"as in step {first}", found.traffic[first], found.called.get(step, {}))
        demand_traffic(trials, scenario, rank, f"step {step}", step, found.traffic[step], form)


def _demand_of_call(trials: Trials, scenario: Scenario, rank: int, call: Call) -> None:
    """It leaves the bytes of each state as they were. A reading receives at most what an all-reduce of each state does,
    and a message with each call."""
    if call.what.startswith("reading"):
        states = len(state_keys(scenario.optimizer)) if "optimizer" in call.what else 1
        received = sum(each.received for each in call.traffic.values())
        calls = sum(each.calls for each in call.traffic.values())
        most = 2 * states * bounds.fp32(scenario, models.shapes(scenario)) + calls * _MESSAGE
        entry = Entry("traffic", f"{received} bytes received by the {call.what}")
        demand_at_most(trials, scenario, rank, entry, received, most, f"{states} all-reduces", "an all-reduce a state")
    for state, size in call.before.items():
        entry = Entry("resident", f"bytes of {state} resident after the {call.what}", state)
        demand(trials, scenario, rank, entry, call.after[state], size, "as before it")


def _demand_step(trials: Trials, scenario: Scenario, expected: History, got: History, step: int, form: Form) -> None:
    """Its traffic is of the form; it keeps as many bytes, and as many wait at once, as in the other training."""
    what = f"step {step}"
    demand_traffic(trials, scenario, got.rank, what, step, got.traffic[step], form)
    for state, size in expected.resident[step].items():
        entry = Entry("resident", f"bytes of {state} resident after {what}", state, step)
        demand(trials, scenario, got.rank, entry, got.resident[step][state], size, form.words)
    entry = Entry("unreduced", f"most bytes of gradients that wait at once in {what}", "gradients", step)
    demand(trials, scenario, got.rank, entry, got.waiting[step], expected.waiting[step], form.words)


@lru_cache(maxsize=4)
def traced(trials: Trials, scenario: Scenario, between: Between) -> list[History]:
    """The Scenario's histories with calls between its steps, in rank order; a second call returns the same ones."""
    return trials.ask(ReplayCommand(scenario, trials.name), history.trace, between)
