"""The strategies draw every value that a Scenario can have, and every combination that matters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from zerobench.engine.config.schema import Config
from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Optimizer, Read, Scenario
from zerobench.subjects.reference import config
from zerobench.suites.equivalence import test_contract, test_steps
from zerobench.suites.meta.power.catching import default_examples
from zerobench.suites.support import covering
from zerobench.suites.support.covering import PECULIAR
from zerobench.suites.support.sizes import EXACT_WORLD_PAIRS, WORLD_PAIRS, leaves_of
from zerobench.suites.support.strategies import USED_ONCE, scenarios
from zerobench.workload.data import takes_route
from zerobench.workload.models.odd import OddModel

#: Fields that are not drawn, and the reason.
NOT_DRAWN: dict[str, str] = {
    "Scenario.nvme_path": "a directory; suites/api draws none either",
    "Scenario.data": "dyadic data have properties of their own; text is for a gpt",
    "Scenario.data_path": "a file",
    "Scenario.device": "the machine's",
    "Scenario.resumes": "properties of its own draw it",
    "Scenario.loads": "suites/equivalence/test_resume.py draws it",
    "Scenario.loads_into": "the same",
    "Scenario.frozen_in": "the same",
    "Odd.persistent": "the same",
    "Odd.rare_parts": "suites/support/rare_values.py has them",
    "Odd.order": "the same",
    "Odd.buffers_by": "the same",
    "Scenario.freezes_half": "the same",
    "Scenario.freezes_stem": "the same",
    "Scenario.settings": "suites/support/own_settings.py chooses them for an engine that has some",
    "Scenario.saving": "the same",
    "Scenario.norm_type": "the same",
    "Scenario.replicate": "the reference engine has no hybrid sharding; suites/meta/test_peers.py has it",
    "LossScale.scaler": "suites/support/offered.py chooses it for an engine that has another one",
    "Odd.kind": "a constant",
    "Odd.routes": "test_every_step.py and test_every_engine.py draw it",
    "Odd.loss": "the dot loss is for dyadic data",
}
#: Keys of the configuration that no Scenario sets, and the reason.
NOT_SET: dict[str, str] = {
    "train_batch_size": "the product of other keys; suites/api/test_config.py",
    "managed_gradient_accumulation": "for calls in another order; suites/api/test_accumulation.py",
    "bf16.enabled": "by dtype",
    "fp16.enabled": "by dtype",
    "zero_optimization.offload_optimizer.pin_memory": "no effect on values; a GPU's",
    "zero_optimization.offload_param.pin_memory": "no effect on values; a GPU's",
}


#: Properties of a few runs each; together they cover.
_DRAWING: list[Any] = [
    test_contract.test_equals_the_canonical_trainer,
    test_contract.test_lateness_changes_nothing,
    test_contract.test_ranks_hold_the_same_state,
    test_contract.test_settings_change_nothing,
    test_contract.test_evaluation_sees_the_trained_values,
    test_contract.test_stages_agree,
    test_steps.test_clipping,
    test_steps.test_overflow_moves_nothing,
    test_steps.test_parameters_move,
    test_steps.test_padding_leaks_nowhere,
]


@cache
def _drawn(
    label: str = "strategies", count: int = 300, strategy: st.SearchStrategy[Scenario] | None = None
) -> tuple[Scenario, ...]:
    """Scenarios as the main property draws them; the covering has their combinations under ``label``."""
    found: list[Scenario] = []

    def take(scenario: Scenario) -> None:
        found.append(scenario)
        covering.count_row()

    quietly = settings(
        max_examples=count,
        backend=covering.backend(label),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    quietly(given(scenario=scenarios() if strategy is None else strategy)(take))()
    return tuple(found)


def _fields() -> list[tuple[str, Any]]:
    """Every field by name, and how to read it."""
    parts: list[tuple[type[Any], Any]] = [
        (Scenario, lambda s: [s]),
        (Odd, lambda s: [s.model]),
        (Optimizer, lambda s: [s.optimizer]),
        (LossScale, lambda s: [s.loss_scale]),
        (Read, lambda s: s.reads),
    ]
    return [(f"{of.__name__}.{field.name}", get) for of, get in parts for field in dataclasses.fields(of)]


@pytest.mark.ci
def test_every_field_is_drawn() -> None:
    """Two values at least, or the table above has the reason."""
    values = {
        name: {repr(getattr(part, name.partition(".")[2])) for scenario in _drawn() for part in get(scenario)}
        for name, get in _fields()
    }
    assert {name for name, found in values.items() if len(found) < 2} == NOT_DRAWN.keys()


@pytest.mark.ci
def test_every_key_is_set() -> None:
    """Every key of the configuration that the engine honours takes two values at least in drawn Scenarios."""
    taken: dict[str, set[str]] = {}
    for scenario in _drawn():
        parsed = Config.model_validate(config(scenario))
        for key, value in _keys(parsed.model_dump()):
            taken.setdefault(key, set()).add(repr(value))
    assert {key for key, values in taken.items() if len(values) < 2} <= NOT_SET.keys()


def _keys(section: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in section.items():
        found += _keys(value, f"{before}{key}.") if isinstance(value, dict) else [(before + key, value)]
    return found


@pytest.mark.ci
def test_a_second_run_draws_the_same() -> None:
    first = _drawn("second run", 40)
    assert _drawn.__wrapped__("second run", 40) == first


def test_all_pairs_and_triples_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws of the contract's properties meet every pair of values and every triple that many more draws meet."""
    monkeypatch.setattr(covering, "SEED", 0)
    monkeypatch.setattr(covering.Covering, "fields", {})
    monkeypatch.setattr(covering.Covering, "covered", {})
    _drawn.__wrapped__()
    anywhere = covering.Covering.covered.pop("strategies")
    for each in (one for test in _DRAWING for one in getattr(test, "by_stage", [test])):
        count = round(settings.get_profile("default").max_examples * each.share)
        _drawn.__wrapped__(each.backend.removeprefix(covering.PREFIX), count, each.strategy)
    missing = anywhere.difference(*covering.Covering.covered.values())
    assert not missing, sorted(missing)[:20]


@pytest.mark.ci
def test_each_rank_is_once_the_only_user_of_a_block() -> None:
    """On every number of ranks, in the draws of the main property in the default profile."""
    test: Any = test_contract.test_equals_the_canonical_trainer
    drawn = _drawn("lone users", default_examples(test), test.strategy)
    found = {(each.world, *users) for each in drawn for users in map(partial(_users, each), range(each.steps))}
    assert {(world, rank) for world in (2, 3, 4) for rank in range(world)} <= found


def _users(scenario: Scenario, step: int) -> set[int]:
    """The ranks that use a block which is not used by all leaves."""
    leaves = range(scenario.leaves_of(step))
    return {leaf % scenario.world for leaf in leaves if takes_route(scenario, step, leaf)}


@pytest.mark.parametrize("peculiar", [name for name in PECULIAR if name not in USED_ONCE])
def test_models_that_use_each_parameter_once(peculiar: str) -> None:
    """A sum of two leaves' gradients has two terms, whatever else is peculiar; a second use would be a third term."""
    spec = dataclasses.replace(Odd(hidden=(3, 4)), **USED_ONCE | {peculiar: True})
    model, x = OddModel(spec), torch.ones(2, spec.width)
    used = _uses(model(x, x, route=True))
    assert used.keys() <= set(model.parameters())
    assert set(used.values()) == {1}


@pytest.mark.parametrize("peculiar", USED_ONCE)
def test_models_that_use_a_parameter_twice(peculiar: str) -> None:
    """Each peculiarity that is excluded gives some parameter a second use."""
    spec = dataclasses.replace(Odd(hidden=(3, 4)), **dict[str, Any]({peculiar: True}))
    x = torch.ones(2, spec.width)
    assert 2 in _uses(OddModel(spec)(x, x, route=True)).values()


@pytest.mark.parametrize(("before", "then"), WORLD_PAIRS)
def test_micro_steps_after_a_load(before: int, then: int) -> None:
    """A step that must follow divides its losses by a number of micro-steps that rounds nothing."""
    share = torch.tensor(1.0) / (leaves_of(before, then) // then)
    assert ((before, then) in EXACT_WORLD_PAIRS) == (float(share) == 1 / (leaves_of(before, then) // then))


def _uses(loss: Tensor) -> Counter[Any]:
    """The number of edges of a loss's graph that lead to each parameter."""
    assert loss.grad_fn is not None
    found: Counter[Any] = Counter()
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting:
        for node in (following for following, _ in waiting.pop().next_functions if following is not None):
            if hasattr(node, "variable"):
                found[node.variable] += 1
            elif node not in seen:
                seen.add(node)
                waiting.append(node)
    return found


def test_a_device_for_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pytest --device cuda` draws Scenarios that train on the GPU."""
    monkeypatch.setattr(covering, "DEVICE", "cuda")
    seen: list[str] = []

    @settings(max_examples=3)
    @given(scenario=scenarios())
    def draws(scenario: Scenario) -> None:
        seen.append(scenario.device)

    draws()
    assert set(seen) == {"cuda"}
