"""If a meter cannot see a number, it returns none; meters of the same number agree."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.meters import LivingTensors, TrafficMeter, crossing, live_tensors, resident
from zerobench.ranks import Pool
from zerobench.recording import Traffic


def _elsewhere(group: dist.ProcessGroup, alike: bool) -> int | None:
    """A rank's count of bytes if the ranks' devices count as one, or as several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zerobench.meters.wire._device", lambda: "one" if alike else f"of rank {dist.get_rank(group)}")
        with crossing(group) as crossed:
            dist.barrier(group)
    return crossed.bytes


def test_ranks_that_share_no_loopback(pool: Pool) -> None:
    """The count of one device is not that of the bytes between ranks that have several."""
    if None in (counted := pool.run(_elsewhere, True, world=2)):
        pytest.skip("the kernel does not say how many bytes crossed the loopback device")
    assert all(counted)
    assert pool.run(_elsewhere, False, world=2) == [None, None]


def _reduced(group: dist.ProcessGroup) -> Traffic:
    """The account of a reduce of 40 bytes to rank 1."""
    with TrafficMeter() as meter:
        dist.reduce(torch.ones(10), group_dst=1, group=group)
    found: Traffic = meter.traffic["reduce"]
    return found


def test_a_reduce_is_the_reverse_of_a_broadcast(pool: Pool) -> None:
    """Each rank but the root sends its bytes, and the root receives them once."""
    assert pool.run(_reduced, world=3) == [Traffic(1, 40, 0), Traffic(1, 0, 40), Traffic(1, 40, 0)]


def _alive(tensors: list[Tensor]) -> set[int]:
    return {id(tensor) for tensor in tensors}


@pytest.mark.parametrize("collections", [(), (0,), (0, 1), (0, 1, 2)])
def test_living_tensors_are_those_of_the_process(collections: tuple[int, ...]) -> None:
    """Whatever the collector has moved meanwhile: old tensors that are freed go, and new ones come."""
    old, stays = [torch.ones(2) for _ in range(3)], torch.ones(3)
    with LivingTensors() as living:
        assert _alive(living.now()) == _alive(live_tensors(collected=False))
        new = [torch.ones(4) for _ in range(5)]
        old.pop()
        for generation in collections:
            gc.collect(generation)
        new.append(torch.ones(5))
        found = living.now()
        assert _alive(found) == _alive(live_tensors(collected=False)) >= _alive([*new, *old, stays])
        del found, new[:]
        assert _alive(living.now()) == _alive(live_tensors(collected=False))
    assert not any(getattr(each, "__self__", None) is living for each in gc.callbacks)


def test_an_uninitialized_parameter_has_no_bytes() -> None:
    """A lazy module has no storage before its first forward; any module of the process may have lazy parts."""
    lazy = nn.LazyLinear(3)
    assert resident([lazy.weight, torch.zeros(2)]) == 8
