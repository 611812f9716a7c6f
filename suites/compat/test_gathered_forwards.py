"""Forwards inside GatheredParameters over the whole model: each rank may run its own, as in generation by TRL."""

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


def _sampling(group: dist.ProcessGroup, stage: int, live: int) -> tuple[Tensor, Tensor]:
    """The outputs of forwards, of which each rank runs another number and kind, between steps; and the masters."""
    ds, net = loops.deepspeed(), loops.model()
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    keys["zero_optimization"]["stage3_max_live_parameters"] = live
    engine, _, loader, _ = ds.initialize(model=net, training_data=loops.data(), config=keys)
    x, rank = torch.ones(2, 5), dist.get_rank()
    seen: list[Any] = []
    for batch in list(loader)[:3]:
        engine.backward(loops.loss(engine, batch))
        engine.step()
        with ds.zero.GatheredParameters(net.parameters(), enabled=stage == 3), torch.no_grad():
            with ds.zero.GatheredParameters(net[0].weight, enabled=stage == 3):
                seen += [net(x) for _ in range(rank)]
            seen += [engine(x) for _ in range(3 - rank)] + [net[0](x)[:, :3]] * (rank == 2)
        seen.append(engine(x).detach())
        engine.empty_partition_cache()
    after = loops.masters(net)
    engine.destroy()
    return torch.stack(seen), after


@pytest.mark.parametrize("live", [0, 10**9])
def test_each_rank_runs_its_own_forwards(pool: Pool, live: int) -> None:
    """They wait for no other rank, and have the values of stage 0; so has the training that goes on."""
    for stages in pool.run(loops.at_every_stage, _sampling, live, world=_WORLD):
        for outputs, after in stages:
            assert torch.equal(outputs, stages[0][0])
            assert torch.equal(after, stages[0][1])


def _offloading(group: dist.ProcessGroup, stage: int) -> int:
    """TRL's calls around generation: take the hooks off, and put them on again."""
    net = loops.model()
    engine, *_ = loops.deepspeed().initialize(model=net, config=loops.config(stage))
    owner = engine.optimizer.parameter_offload
    parameters = [*owner.module.named_parameters(recurse=True), *owner.module.ds_external_parameters()]
    for _, parameter in parameters:
        parameter.ds_active_sub_modules.clear()
    for hook in (*owner.forward_hooks, *owner.backward_hooks):
        hook.remove()
    owner._register_deepspeed_module(owner.module)
    engine.destroy()
    return sum(isinstance(parameter, nn.Parameter) for _, parameter in parameters)


def test_the_owner_of_the_hooks(pool: Pool) -> None:
    """It has DeepSpeed's names, at stage 3."""
    assert pool.run(_offloading, 3, world=_WORLD) == [4] * _WORLD
