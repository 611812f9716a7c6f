"""Forwards inside GatheredParameters over the whole model: each rank may run its own, as in generation by TRL."""

from __future__ import annotations

from contextlib import suppress
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
            with suppress(ArithmeticError), ds.zero.GatheredParameters(net[0].weight, enabled=stage == 3):
                raise ArithmeticError("the caller's own")
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


def _set_after_emptying(group: dist.ProcessGroup, stage: int) -> Tensor:
    """A weight that the client sets within a context, after it has emptied the cache."""
    ds, net = loops.deepspeed(), loops.model()
    engine, *_ = ds.initialize(model=net, config=loops.config(stage))
    weight = next(net.parameters())
    with ds.zero.GatheredParameters(weight, modifier_rank=0, enabled=stage == 3), torch.no_grad():
        engine.empty_partition_cache()
        ds.utils.safe_set_full_fp32_param(weight, torch.full_like(weight, 0.5, dtype=torch.float32))
    with ds.zero.GatheredParameters(weight, enabled=stage == 3):
        found = weight.detach().clone()
    engine.destroy()
    return found


def test_a_value_set_after_the_cache_is_emptied(pool: Pool) -> None:
    """The context keeps it: what a context shows stays."""
    for stages in pool.run(loops.at_every_stage, _set_after_emptying, world=_WORLD):
        assert all(bool((found == 0.5).all()) for found in stages)


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


def _generating(group: dist.ProcessGroup, stage: int) -> Tensor:
    """Outputs within unwrap_model_for_generation(), one more on each rank, then a step; the masters."""
    ds, net = loops.deepspeed(), loops.model()
    engine, _, loader, _ = ds.initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    with ds.zero.unwrap_model_for_generation(engine) as whole, torch.no_grad():
        outputs = [whole.module(torch.ones(2, 5)) for _ in range(1 + dist.get_rank())]
    for batch in list(loader)[:2]:
        engine.backward(loops.loss(engine, batch))
        engine.step()
    after = loops.masters(net)
    engine.destroy()
    return torch.cat([outputs[0].flatten(), after])


def test_unwrapped_for_generation(pool: Pool) -> None:
    """The parameters are whole, and training goes on, at every stage alike."""
    ranks = pool.run(loops.at_every_stage, _generating, world=_WORLD)
    assert all(torch.equal(found, ranks[0][0]) for stages in ranks for found in stages)


def _tiled(group: dist.ProcessGroup, stage: int) -> tuple[bool, list[str], Tensor]:
    """Whether tiles compute what the whole layer does; their names; and the masters after a step."""
    ds = loops.deepspeed()
    torch.manual_seed(0)
    whole = nn.Linear(7, 5)
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    with ds.zero.Init(config_dict_or_path=keys, enabled=stage == 3):
        net = ds.zero.TiledLinear(7, 5, in_splits=3, out_splits=2, init_linear=whole)
    engine, *_ = ds.initialize(model=net, config=keys)
    x = torch.randn(2, 7, generator=torch.Generator().manual_seed(dist.get_rank()))
    outputs = engine(x)
    same = torch.allclose(outputs, whole(x), atol=1e-6)
    engine.backward(outputs.square().mean())
    engine.step()
    after, names = loops.masters(net), [name for name, _ in net.named_parameters()]
    engine.destroy()
    return same, names, after


def test_tiles(pool: Pool) -> None:
    """A layer of tiles is the whole layer, and trains alike at every stage; the last tile of a row has the bias."""
    ranks = pool.run(loops.at_every_stage, _tiled, world=_WORLD)
    for stages in ranks:
        for same, names, after in stages:
            assert same
            assert names[:5] == [f"linears.0.{tile}" for tile in ("0.weight", "1.weight", "2.weight", "2.bias")] + [
                "linears.1.0.weight"
            ]
            assert torch.equal(after, ranks[0][0][2])


def test_tiles_of_parts() -> None:
    """Inputs and outputs in parts, tiles that return their bias, and too many tiles."""
    ds, x = loops.deepspeed(), torch.ones(2, 4)
    tiles = ds.zero.TiledLinear(4, 4, in_splits=2, out_splits=2, input_is_already_split=True, combine_out_splits=False)
    assert [each.shape for each in tiles(x.chunk(2, dim=-1))] == [(2, 2), (2, 2)]
    with pytest.raises(ValueError, match="the input has 3 parts; give one for each of the 2 in_splits"):
        tiles([x, x, x])
    with pytest.raises(RuntimeError, match=r"in_splits must be in range \[1, in_features\], got 5 of 4"):
        ds.zero.TiledLinear(4, 4, in_splits=5)
    apart = ds.runtime.zero.tiling.TiledLinearReturnBias(4, 4, in_splits=2, out_splits=2, linear_cls=_Apart)
    outputs, bias = apart(x)
    assert (outputs.shape, bias.shape) == ((2, 4), (4,))


class _Apart(nn.Linear):
    """It returns its bias in place of adding it."""

    def forward(self, input: Tensor) -> Any:  # noqa: A002  # the name of nn.Linear
        return nn.functional.linear(input, self.weight), self.bias
