"""The engines that zerobench brings beside its own: each is right on exact data and leaves torch as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from zerobench import subjects
from zerobench.judge.judgement import is_exact
from zerobench.model_specs import Odd
from zerobench.oracles.canonical_trainer import canonical
from zerobench.ranks import Pool
from zerobench.scenario import Optimizer, Scenario
from zerobench.suites.accounting import grid, test_memory, test_traffic
from zerobench.suites.support.neighbours import replaced, scenario_of
from zerobench.suites.support.offered import nearest
from zerobench.suites.support.trials import Trials, exact

_PEERS = [
    ("torch-ddp", 0),
    ("torch-zero1", 1),
    ("torch-fsdp1", 0),
    ("torch-fsdp1", 2),
    ("torch-fsdp1", 3),
    ("torch-fsdp2", 2),
    ("torch-fsdp2", 3),
    *(("deepspeed", stage) for stage in range(4)),
    ("accelerate-ddp", 0),
    ("accelerate-fsdp2", 2),
    ("accelerate-fsdp2", 3),
    ("fairscale-oss", 2),
]
#: The same engines with other settings.
_VARIANTS = [name for name, where in subjects.REGISTRY.items() if ".variants:" in where]
#: Every sum of its step is exact, in any order.
_DYADIC = Scenario(
    model=Odd(width=8, hidden=(7,), activation="relu", loss="dot", norm=False),
    steps=1,
    data="dyadic",
    optimizer=Optimizer(name="sgd", lr=2.0**-4, weight_decay=0.0, momentum=0.0),
)


@pytest.fixture(scope="module")
def trials_of(pool: Pool) -> Iterator[Callable[[str], Trials]]:
    """The Trials of a peer; DeepSpeed has ranks of its own, which its tests share."""
    made: list[Trials] = []

    @cache
    def find(peer: str) -> Trials:
        made.append(Trials(pool, peer))
        return made[-1]

    yield find
    for each in made:
        each.close()


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(("peer", "stage"), _PEERS)
def test_peers_on_exact_data(trials_of: Callable[[str], Trials], peer: str, stage: int, world: int) -> None:
    """The peers give the same bits on dyadic data, at every world size; DeepSpeed if it is installed."""
    _demand_exact(trials_of(peer), _DYADIC.but(world=world, stage=stage))


@pytest.mark.rotating
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("variant", _VARIANTS)
def test_variants_on_exact_data(trials_of: Callable[[str], Trials], variant: str, stage: int) -> None:
    """An engine with other settings gives the same bits on dyadic data, on four ranks."""
    found = nearest(subjects.load(variant), _DYADIC.but(world=4, stage=stage), ["world", "stage"])
    if isinstance(found, str):
        pytest.skip(found)
    _demand_exact(trials_of(variant), found)


@pytest.mark.parametrize("stage", [2, 3])
def test_hybrid_sharding_on_exact_data(trials_of: Callable[[str], Trials], stage: int) -> None:
    """FSDP2 on a mesh of two times two ranks gives the same bits."""
    _demand_exact(trials_of("torch-fsdp2"), _DYADIC.but(world=4, stage=stage, replicate=2))


@pytest.mark.ci
@pytest.mark.parametrize("replicate", [2, 4])
@pytest.mark.parametrize(("stage", "changes"), [(2, {"accumulation": 2, "clip": 1.0}), (3, {}), (3, {"dtype": "bf16"})])
def test_hybrid_sharding_has_closed_forms(
    trials_of: Callable[[str], Trials], stage: int, changes: dict[str, Any], replicate: int
) -> None:
    """A rank holds its share of a group's shards, gathers in its group, and reduces across the groups as well."""
    scenario = Scenario(model=grid.DEEP, world=4, stage=stage, replicate=replicate).but(**changes)
    test_memory.test_resident_bytes(trials_of("torch-fsdp2"), scenario)
    test_traffic.test_traffic(trials_of("torch-fsdp2"), scenario)


@pytest.mark.parametrize("subject", [name for name in subjects.REGISTRY if not name.startswith(("torch-fsdp", "deep"))])
def test_hybrid_sharding_that_is_not_offered(subject: str) -> None:
    """The other engines refuse it."""
    reasons = [subjects.load(subject).unsupported(_DYADIC.but(world=4, stage=each, replicate=2)) for each in range(4)]
    assert all(reasons), reasons


@pytest.mark.parametrize(("subject", "stage"), [*_PEERS, ("compute-only", 0)])
def test_torch_is_left_as_it_was(pool: Pool, subject: str, stage: int) -> None:
    """The check of the equivalence suite, for the peers."""
    scenario = scenario_of(subjects.load(subject), stage)
    if reason := subjects.load(subject).unsupported(scenario):
        pytest.skip(reason)
    assert pool.run(replaced, subject, scenario, world=scenario.world) == [[]] * scenario.world


def _demand_exact(trials: Trials, scenario: Scenario) -> None:
    if reason := trials.subject.unsupported(scenario):
        pytest.skip(reason)
    expected = canonical(scenario, frozenset(["gradients", "parameters"]))
    assert is_exact(expected, exact(scenario)), "the data are not exact: choose smaller ones"
    trials.agree(trials.run(scenario), expected, ("losses", "gradients", "parameters"))
