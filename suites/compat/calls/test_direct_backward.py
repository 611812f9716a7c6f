"""``loss.backward()`` without the engine gives the bits of ``engine.backward(loss)``, at every stage."""

from __future__ import annotations

import pytest
import torch

from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.compat.calls import direct_loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


@pytest.mark.parametrize(
    ("dtype", "recompute"),
    [
        ("fp32", "none"),
        ("fp16", "reentrant"),
        pytest.param("bf16", "plain"),
        pytest.param("fp32", "reentrant"),
    ],
)
def test_trajectory(pool: Pool, dtype: str, recompute: str) -> None:
    """Each step, also if blocks are computed again in backward."""
    [expected, *_] = pool.run(direct_loops.trained, 1, False, dtype, recompute, world=_WORLD)
    assert len(expected) == 6
    for stages in pool.run(loops.at_every_stage, direct_loops.trained, True, dtype, recompute, world=_WORLD):
        for states in stages:
            assert all(torch.equal(a, b) for a, b in zip(states, expected, strict=True))


@pytest.mark.parametrize("offload", [False, True])
def test_backwards_in_a_hook_of_the_loss(pool: Pool, offload: bool) -> None:
    """A loss that caches the gradients of its embeddings: the engine's backward has others in it, at every stage."""
    [plain, *_] = pool.run(direct_loops.cached, 1, False, 0, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, direct_loops.cached, offload, 2, world=_WORLD):
        for states in stages:
            assert all(torch.equal(a, b) for a, b in zip(states, stages[0], strict=True))
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(states, plain, strict=True))
            assert not torch.equal(states[0], states[-1])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("runs", [None, 0, 1], ids=["caller", "first", "second"])
def test_two_engines(pool: Pool, runs: int | None, dtype: str) -> None:
    """One backward through two engines gives the bits of one engine, if the caller or any of the two runs it."""
    for whole, halves in zip(
        pool.run(loops.at_every_stage, direct_loops.split, 1, None, dtype, world=_WORLD),
        pool.run(loops.at_every_stage, direct_loops.split, 2, runs, dtype, world=_WORLD),
        strict=True,
    ):
        assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))


def test_gradients_of_inputs(pool: Pool) -> None:
    """``torch.autograd.grad`` is no micro-step."""
    assert pool.run(loops.at_every_stage, direct_loops.penalised, world=_WORLD) == [[6] * 4] * _WORLD


def test_gradients_of_parameters(pool: Pool) -> None:
    """``torch.autograd.grad`` of a parameter has its values, is no micro-step, and all stages are one trajectory."""
    by_stage = pool.run(loops.at_every_stage, direct_loops.balanced, world=_WORLD)
    for stages in by_stage:
        first, of_plain = stages[0][:2]
        assert torch.equal(first, of_plain)
        for seen in stages:
            assert all(torch.equal(a, b) for a, b in zip(seen, stages[0], strict=True))
    assert all(torch.equal(stages[0][-1], by_stage[0][0][-1]) for stages in by_stage)


def test_dataclass(pool: Pool) -> None:
    """A loss in a dataclass, as of diffusers' outputs, begins a micro-step as one in a dict does."""
    [expected, *_] = pool.run(direct_loops.of_dataclass, 1, False, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, direct_loops.of_dataclass, True, world=_WORLD):
        assert all(torch.equal(each, expected) for each in stages)


def test_interrupted(pool: Pool) -> None:
    """After an exception in backward the engine refuses to go on, as after one in its own backward."""
    pool.run(loops.at_every_stage, direct_loops.interrupted, False, world=_WORLD)  # destroy() follows it
    for stages in pool.run(loops.at_every_stage, direct_loops.interrupted, True, world=_WORLD):
        assert all("an exception ended backward() of this engine early" in text for text in stages)


def test_unscaled(pool: Pool) -> None:
    """fp16 without the loss scale is refused with the calls that have it."""
    for stages in pool.run(loops.at_every_stage, direct_loops.unscaled, world=_WORLD):
        assert all("engine.scale(loss).backward()" in text for text in stages)
