"""Penalties on parameters outside a forward, within GatheredParameters: stage 3 makes the steps of stages 0 to 2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


def _keys(stage: int, dtype: str) -> dict[str, Any]:
    keys = loops.config(stage, train_batch_size=8, gradient_accumulation_steps=1)
    return keys if dtype == "fp32" else keys | {dtype: {"enabled": True}}


def _penalized(group: dist.ProcessGroup, stage: int, inside: bool, dtype: str) -> tuple[Tensor, list[float]]:
    """The masters after steps with an L1 penalty, whose backward reads the weights, and the penalties."""
    ds, net, penalties = loops.deepspeed(), loops.model(), []
    engine, _, loader, _ = ds.initialize(model=net, training_data=loops.data(), config=_keys(stage, dtype))
    for batch in loader:
        loss = loops.loss(engine, batch)
        with ds.zero.GatheredParameters(net.parameters()):
            penalty = torch.stack([each.abs().sum().float() for each in net.parameters()]).sum()
            if inside:
                engine.backward(loss + penalty)
        if not inside:
            engine.backward(loss + penalty)
        engine.step()
        penalties.append(penalty.item())
    after = loops.masters(net)
    engine.destroy()
    return after, penalties


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("inside", [True, False])
def test_an_l1_penalty(pool: Pool, inside: bool, dtype: str) -> None:
    """The backward may come within the context or after it, when the weights that it reads are not whole."""
    [(expected, penalties), *_] = pool.run(_penalized, 0, inside, dtype, world=_WORLD)
    assert penalties[-1] < penalties[0]
    for stage in (1, 2, 3):
        for after, found in pool.run(_penalized, stage, inside, dtype, world=_WORLD):
            assert torch.equal(after, expected)
            assert found == penalties


def _distilled(group: dist.ProcessGroup, stage: int, whole: bool) -> tuple[Tensor, list[bool]]:
    """The masters of a student, and the units whose memory its forward has kept, if its forward runs while the weights
    of its teacher, another engine's, are ``whole``."""
    ds, kept = loops.deepspeed(), []
    torch.manual_seed(1)
    student, teacher = nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 3)), nn.Linear(5, 3)
    keys = _keys(stage, "fp32")
    keys["zero_optimization"] |= {"stage3_max_live_parameters": 0}
    first, _, loader, _ = ds.initialize(model=student, training_data=loops.data(), config=keys)
    second, *_ = ds.initialize(model=teacher, config=keys)
    for batch in loader:
        with ds.zero.GatheredParameters(teacher.parameters(), enabled=whole):
            outputs = first(batch[0])
            kept += [state.resident for state in first._engine.states]
            target = teacher.weight.detach() if whole else ds.utils.safe_get_full_fp32_param(teacher.weight)
            loss = nn.functional.mse_loss(outputs, nn.functional.linear(batch[0], target))
        first.backward(loss)
        first.step()
    after = loops.masters(student)
    first.destroy()
    second.destroy()
    return after, kept


def test_a_forward_among_the_weights_of_another_engine(pool: Pool) -> None:
    """The student's backward gathers its own weights, as without the context: the forward keeps no memory of them."""
    expected = pool.run(_distilled, 0, True, world=_WORLD)[0][0]
    for stage in (1, 2, 3):
        found = [pool.run(_distilled, stage, whole, world=_WORLD) for whole in (True, False)]
        for (after, kept), (_, without) in zip(*found, strict=True):
            assert torch.equal(after, expected)
            assert kept == without
            assert all(kept) == (stage < 3)
