"""Prefetch of shards that are off the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerobench


@pytest.mark.parametrize(("prefetch", "ahead"), [(0, 1), (1, 3), (2 * 64 * 64, 3)])
@pytest.mark.parametrize("place", ["cpu", "nvme"])
def test_shards_are_asked_for_ahead(tmp_path: Path, place: str, prefetch: int, ahead: int) -> None:
    """With prefetch as many shards as it allows, and two at least, are on their way up beside the one wanted now."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5)))
    section = {"device": place} | ({"nvme_path": str(tmp_path), "max_in_cpu": 0} if place == "nvme" else {})
    stage3 = {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    zero = {"stage": 3, "stage3_prefetch_bucket_size": prefetch, "offload_param": section, **stage3}
    config = {"train_batch_size": 1, "optimizer": {"type": "SGD"}, "zero_optimization": zero}
    engine, *_ = zerobench.initialize(model, config)
    coming: set[int] = set()
    most = 0

    def watch(store: Any) -> None:
        nonlocal most
        asked, load = store.prefetch, store.load

        def prefetching() -> None:
            nonlocal most
            coming.add(id(store))
            most = max(most, len(coming))
            asked()

        def loading() -> Tensor:
            coming.discard(id(store))
            return load()  # type: ignore[no-any-return]

        store.prefetch, store.load = prefetching, loading

    for state in engine.states:
        watch(state.parameter_store)
    for _ in range(2):  # the first learns the order
        engine.backward(engine(torch.ones(1, 64)).sum())
        engine.step()
    engine.destroy()
    assert most == ahead
