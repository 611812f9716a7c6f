"""The gate's statistics, on simulated noise and on noise that was recorded: false alarms, and power at 15 %."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobench.gate import timing
from zerobench.gate.timing import PAIRS, Multiples, Round, Side, Timed
from zerobench.suites.meta.gate.record_gates import RECORDED

_CASES = ("stage 0", "stage 1", "stage 2", "stage 3")
#: Seconds of a step in fresh processes that ran the same code, one after another on two busy cores: the seven rounds of
#: a commit gated against itself.
_RECORDED: list[dict[str, float]] = json.loads(Path(__file__).with_name("noise.json").read_text())
#: The rounds of whole gates of a commit against itself.
_GATES = [[Round(each["base"], each["head"]) for each in rounds] for rounds in json.loads(RECORDED.read_text())]


def simulated(sigma: float, factor: float, seed: int) -> Callable[[Side], Multiples]:
    """A machine that drifts (a random walk), hiccups (one process in ten, by 30 % on average) and has heavy tails.

    The tails are Student's with 3 degrees of freedom. ``factor`` is the head's time to the base's.
    """
    rng, drift = np.random.default_rng(seed), 0.0

    def run(side: Side) -> Multiples:
        nonlocal drift
        drift += rng.normal(0, sigma)
        hiccup = rng.exponential(0.3) if rng.random() < 0.1 else 0.0
        scale = 0.01 * (factor if side == "head" else 1)
        return {case: scale * math.exp(drift + hiccup + sigma * rng.standard_t(3)) for case in _CASES}

    return run


def recorded(factor: float, seed: int) -> Callable[[Side], Multiples]:
    """What was recorded, in runs of three processes as they followed each other, drawn anew for each gate."""
    rng = np.random.default_rng(seed)
    waiting: list[dict[str, float]] = []

    def run(side: Side) -> Multiples:
        if not waiting:
            start = int(rng.integers(len(_RECORDED) - 2))
            waiting.extend(_RECORDED[start : start + 3])
        return {case: seconds * (factor if side == "head" else 1) for case, seconds in waiting.pop(0).items()}

    return run


def gates(machine: Callable[[int], Callable[[Side], Multiples]], number: int) -> list[list[Timed]]:
    """Whole gates, with more pairs where they are unsure."""
    return [timing.measure(machine(seed))[0] for seed in range(number)]


def said(every: Sequence[Sequence[Timed]], verdict: timing.TimeVerdict) -> int:
    """How many gates said it of any case."""
    return sum(any(each.verdict == verdict for each in timed) for timed in every)


@pytest.mark.parametrize("sigma", [0.005, 0.01, 0.03, 0.1])
def test_false_alarms(sigma: float) -> None:
    """Of 200 gates of four cases, at most one in a hundred calls the same code slower."""
    assert said(gates(lambda seed: simulated(sigma, 1.0, seed), 200), "SLOWER") <= 2


@pytest.mark.parametrize(("sigma", "least"), [(0.005, 0.95), (0.01, 0.95), (0.03, 0.95), (0.05, 0.9)])
def test_power_at_15_percent(sigma: float, least: float) -> None:
    """A head that takes 15 % more in every case is caught."""
    assert said(gates(lambda seed: simulated(sigma, 1.15, seed), 200), "SLOWER") >= least * 200


def test_twenty_gates_of_the_same_code_on_recorded_noise() -> None:
    """None fails."""
    assert said(gates(lambda seed: recorded(1.0, seed), 20), "SLOWER") == 0


def test_twenty_gates_of_a_slower_head_on_recorded_noise() -> None:
    """All fail at 15 %."""
    assert said(gates(lambda seed: recorded(1.15, seed), 20), "SLOWER") == 20


def test_real_gates_of_the_same_code() -> None:
    """None of those that record_gates.py has run fails, nor would have, had it ended earlier."""
    looks = [list(timing.time_verdicts(rounds[:stop])) for rounds in _GATES for stop in stops(rounds)]
    assert said(looks, "SLOWER") == 0


def test_real_gates_of_a_slower_head() -> None:
    """All of the same fail where the head's times are 15 % longer, in every case."""
    assert {each.verdict for rounds in _GATES for each in replayed(rounds, 1.15)} == {"SLOWER"}


def stops(rounds: Sequence[Round]) -> list[int]:
    """After how many pairs a gate of these rounds was asked for verdicts."""
    return [stop for stop in PAIRS if stop <= len(rounds)]


def replayed(rounds: Sequence[Round], factor: float) -> list[Timed]:
    """What a gate would have come to, had its head taken so many times as long; its first round is the warm-up, too."""
    sides = {"base": [each.base for each in rounds], "head": [each.head for each in rounds]}
    waiting = {side: iter([every[0], *every]) for side, every in sides.items()}

    def run(side: Side) -> Multiples:
        scale = factor if side == "head" else 1
        return {case: scale * each for case, each in next(waiting[side]).items()}

    return timing.measure(run, stops=stops(rounds))[0]


def test_faster_is_told() -> None:
    """By the same rule, the other way round."""
    every = gates(lambda seed: simulated(0.01, 1 / 1.15, seed), 50)
    assert said(every, "FASTER") >= 48
    assert said(every, "SLOWER") == 0


def test_a_change_below_the_effect_is_none() -> None:
    """2 % is not worth a word."""
    verdicts = Counter(each.verdict for timed in gates(lambda seed: simulated(0.003, 1.02, seed), 50) for each in timed)
    assert verdicts["SLOWER"] == 0
    assert verdicts["SAME"] > 150


def test_order_and_number_of_runs() -> None:
    """A warm-up of each; then the sides alternate; only cases that are unsure ask for more than seven pairs."""
    order: list[Side] = []

    def run(side: Side) -> Multiples:
        order.append(side)
        return {"case": 1.0}

    [timed], rounds = timing.measure(run)
    assert order[:2] == ["base", "head"]
    assert order[2:8] == ["base", "head", "head", "base", "base", "head"]
    assert (timed.verdict, timed.pairs, len(rounds), len(order)) == ("SAME", PAIRS[0], PAIRS[0], 2 + 2 * PAIRS[0])


@pytest.mark.parametrize("number", PAIRS)
def test_the_floor_is_of_neighbours_of_one_side(number: int) -> None:
    """Times that say when they were taken: each A/A pair is two processes of one side, one right after the other."""
    clock = iter(range(1, 100))
    taken: dict[int, Side] = {}

    def run(side: Side) -> Multiples:
        taken[at := next(clock)] = side
        return {"case": math.exp(at * at / 10)}

    _, rounds = timing.measure(run, effect=0.0, stops=[number])
    base, head = [each.base["case"] for each in rounds], [each.head["case"] for each in rounds]
    ratios = timing.nothing(base, head)
    earlier = [round((10 * ratio - 1) / 2) for ratio in ratios]
    assert all(taken[at] == taken[at + 1] for at in earlier)
    assert len(set(earlier)) == len(ratios) == number - 2


def test_unsure_measures_up_to_the_cap() -> None:
    """And stays unsure: a machine that strays by half tells nothing of 15 %."""
    timed, rounds = timing.measure(simulated(0.5, 1.15, 0))
    assert len(rounds) == PAIRS[-1]
    assert {each.verdict for each in timed} == {"UNSURE"}


def test_a_case_that_one_side_lacks_has_no_verdict() -> None:
    """It is for the caller to say that it was not timed."""
    both, one = {"a": 1.0, "b": 1.0}, {"a": 1.0}
    assert [each.case for each in timing.time_verdicts([Round(both, one)] * 7)] == ["a"]


@given(st.sampled_from(PAIRS), st.integers(0, 1000))
def test_the_interval_is_the_bootstraps(n: int, seed: int) -> None:
    """Resampling comes to the closed form, up to one order statistic."""
    rng = np.random.default_rng(seed)
    values = sorted(rng.normal(size=n).tolist())
    medians = sorted(np.median(rng.choice(values, size=(2000, n)), axis=1).tolist())
    low, high = timing.interval(values)
    assert abs(values.index(low) - values.index(medians[10])) <= 1
    assert abs(values.index(high) - values.index(medians[-11])) <= 1


@given(st.integers(0, 10_000))
def test_the_interval_turns_with_the_pairs(seed: int) -> None:
    """Swapping base and head turns the sign, and nothing else."""
    values = np.random.default_rng(seed).normal(0.1, 1, size=13).tolist()
    low, high = timing.interval(values)
    assert timing.interval([-value for value in values]) == (-high, -low)
