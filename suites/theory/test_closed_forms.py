"""Theory: the closed forms agree with each other and, if nothing is padded, with the published ones."""

from __future__ import annotations

from fractions import Fraction

import pytest

from zerobench.model_specs import Gpt, Recompute
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.theory import memory, traffic
from zerobench.theory.layout import units
from zerobench.theory.rounds import play
from zerobench.workload import models

#: Mixed precision as in the ZeRO paper: 2 bytes a parameter, 2 a gradient, 12 an element's optimizer state.
_PAPER = Scenario(dtype="bf16", accumulator_dtype="bf16", chunk=32, prefetch_bucket=0)
#: Every parameter is a multiple of 32 elements times 1, 2 and 4 ranks, so that nothing is padded.
_EVEN = Gpt(vocab=128, context=128, width=128, layers=3, heads=4)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("world", [1, 2, 4])
def test_memory_is_the_papers_where_nothing_is_padded(stage: int, world: int) -> None:
    """Without padding, parameters, gradients and optimizer state take 4 + 12/N bytes an element at stage 1, 2 + 14/N at
    stage 2 and 16/N at stage 3, as published."""
    scenario = _PAPER.but(model=_EVEN, stage=stage, world=world)
    model = models.build(scenario)
    elements = sum(p.numel() for p in model.parameters())
    predicted = memory.predicted(scenario, model)
    assert {state: Fraction(size) for state, size in predicted.items()} == memory.paper(stage, elements, world)
    assert sum(predicted.values()) == elements * _bytes_of_an_element(stage, world)


def _bytes_of_an_element(stage: int, world: int) -> Fraction:
    return [Fraction(16), 4 + Fraction(12, world), 2 + Fraction(14, world), Fraction(16, world)][stage]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", range(4))
def test_volume_is_the_papers_where_nothing_is_padded(stage: int, accumulation: int) -> None:
    """With A micro-steps, e bytes an element and a share f = (N - 1) / N of it: stages 0 and 1 send 2 f e, stage 2 f e
    (A + 1), stage 3 at most 3 f e A: less the units that forward leaves for backward, or that backward does not
    need."""
    scenario = _PAPER.but(model=_EVEN, stage=stage, world=4, accumulation=accumulation)
    model = models.build(scenario)
    unit = sum(p.numel() for p in model.parameters()) * 2 * 3 // 4
    sent = sum(each.sent for each in traffic.predicted(scenario, model).values())
    volume = sent - _agreement(scenario).sent
    expected = [2 * unit, 2 * unit, (accumulation + 1) * unit, 3 * accumulation * unit][stage]
    if stage < 3:
        assert volume == expected
    else:
        spared = sum(each.padded for each in units(scenario, model) if each.home in ("tokens", "positions", "head"))
        assert volume == expected - spared * 2 * 3 // 4 * accumulation


def _agreement(scenario: Scenario) -> Traffic:
    """The bytes by which ranks agree: the norm check's and, at stage 3, the agreements'."""
    model = models.build(scenario)
    cut = units(scenario, model)
    check = 8 * sum(unit.shard for unit in cut) // scenario.chunk + len(list(model.parameters()))
    rounds = sum(len(each.rounds) for each in play(scenario, model, 3)[2]) if scenario.placement.parameters else 0
    size = (scenario.world - 1) * (check + rounds * (len(cut) // 8 + 5))
    return Traffic(1 + rounds, size, size)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("recompute", ["none", "non_reentrant", "reentrant"])
@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize(("bucket", "batches"), [(1, 3), (1 << 20, 1)], ids=["apart", "together"])
def test_common_case_of_stage_3(layers: int, recompute: Recompute, tied: bool, bucket: int, batches: int) -> None:
    """A gpt without prefetch gathers 2 L + 5 units in a micro-step. It takes a round for each, one for each batch among
    the three units whose gradients are complete after the last gather (none in the first micro-step or under reentrant
    recomputation), and one at the end."""
    spec = Gpt(vocab=32, context=8, width=8, layers=layers, heads=2, tied=tied, recompute=recompute)
    scenario = Scenario(model=spec, stage=3, world=2, prefetch_bucket=0, chunk=32, reduce_bucket=bucket)
    first, then = (steps[0] for steps in play(scenario, models.build(scenario), 2))
    gathers = 2 * layers + 5
    reductions = 0 if recompute == "reentrant" else batches
    assert sum(map(len, first.rounds)) == sum(map(len, then.rounds)) == gathers
    assert len(first.rounds) == gathers + 1
    assert len(then.rounds) == gathers + reductions + 1


def test_settings_move_calls_not_bytes() -> None:
    """Bucket sizes change the number of a collective's calls, never its bytes, except for padding (of the units, which
    below stage 3 a small bucket keeps apart) and stage 3's rounds (a small bucket makes more batches)."""
    for stage in range(4):
        large = _PAPER.but(model=_EVEN, stage=stage, world=4)
        small = large.but(reduce_bucket=1, allgather_bucket=1)
        one, other = (traffic.predicted(each, models.build(each)) for each in (large, small))
        agreed = _agreement(small).sent - _agreement(large).sent
        assert other["all_to_all"].sent == one["all_to_all"].sent
        assert other["send"].sent == other["recv"].received == one["send"].sent + agreed
        assert (agreed > 0) == (stage == 3)
        for collective, seen in one.items():
            assert other[collective].calls > seen.calls
