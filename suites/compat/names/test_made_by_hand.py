"""Objects that a script constructs by itself, where ``initialize()`` would do it: DeepSpeed's loader and sections."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from zerobench.suites.compat import loops, oracle

_DATA = TensorDataset(torch.arange(10))


def _batches() -> list[Any]:
    """Of loaders whose arguments are given by position and by keyword; the starts of the timer; the attributes."""
    made, starts = importlib.import_module("deepspeed.runtime.dataloader").DeepSpeedDataLoader, list[int]()
    timer = SimpleNamespace(start=lambda: starts.append(1))
    ours = made(_DATA, 2, False, 0, timer, None, 0, None, 2, 1, True)
    named = made(
        dataset=_DATA,
        batch_size=4,
        pin_memory=False,
        local_rank=0,
        tput_timer=None,
        collate_fn=lambda samples: sum(each for (each,) in samples),
        num_local_io_workers=0,
        data_sampler=torch.utils.data.SequentialSampler(_DATA),
        dataloader_drop_last=False,
        deepspeed_dataloader_config={},
    )
    torch.manual_seed(3)
    alone = made(_DATA, 10, False, -1, None, num_local_io_workers=0)
    seen = [[batch.tolist() for (batch,) in ours], [int(each) for each in named], next(iter(alone))[0].tolist()]
    lengths = [(len(each), each.len, each.batch_size) for each in (ours, named, alone)]
    flags = (ours.dataloader_drop_last, ours.pin_memory, ours.num_local_io_workers, ours.curriculum_learning_enabled)
    return [*seen, lengths, flags, len(starts)]


def test_loader() -> None:
    """Its parameters are DeepSpeed's: shares of the ranks, samplers, a timer, and a random order without a rank."""
    loops.deepspeed()
    first, sums, alone, lengths, flags, starts = _batches()
    assert [len(each) for each in first] == [2, 2]
    assert sums == [6, 22, 17]
    assert sorted(alone) == list(range(10))
    assert lengths == [(2, 2, 2), (3, 3, 4), (1, 1, 10)]
    assert (flags, starts) == ((True, False, 0, False), 3)


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
def test_batches_are_deepspeeds() -> None:
    """The installed DeepSpeed's loader gives these batches, too."""
    loops.deepspeed()
    assert _batches() == oracle.ask(_batches)


_SECTIONS: list[dict[str, Any]] = [
    {"stage": 2},
    {"stage": 3, "prefetch_bucket_size": 7, "stage3_max_live_parameters": 5},
    {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 9},
    {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
]


def _values(given: dict[str, Any], names: list[str]) -> dict[str, str]:
    """The values of plain keys of ``DeepSpeedZeroConfig``, and those of ``offload_optimizer`` if it is given."""
    section = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig(**given)
    found = {
        name: str(int(value) if name == "stage" else value) for name in names for value in [getattr(section, name)]
    }
    moved = section.offload_optimizer
    return found | ({} if moved is None else {"moved": f"{moved.device} {moved.pin_memory} {moved.ratio}"})


def _names() -> list[str]:
    """DeepSpeed's keys whose values are no sections."""
    fields = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig.model_fields
    return sorted(set(fields) - {"offload_param", "offload_optimizer", "leaf_module"})


def test_a_section_prints_its_values() -> None:
    """A script that prints it sees the keys."""
    loops.deepspeed()
    made = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig(stage=2)
    assert repr(made).startswith("DeepSpeedZeroConfig(")
    assert "stage=2" in repr(made)
    assert (made.zenflow, made.leaf_module) == (None, None)
    assert (made.override_module_apply, made.zero_quantized_weights, made.cpu_offload) == (True, False, None)


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
@pytest.mark.parametrize("given", _SECTIONS)
def test_sections_have_deepspeeds_values(given: dict[str, Any]) -> None:
    """Each key of the installed DeepSpeed is an attribute with its value."""
    loops.deepspeed()
    names = oracle.ask(_names)
    assert len(names) > 35
    assert _values(given, names) == oracle.ask(_values, given, names)
