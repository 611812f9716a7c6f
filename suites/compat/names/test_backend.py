"""Names below deepspeed.comm and deepspeed.accelerator that few scripts use: the backend, a decorator, host memory."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.compat.accelerator.accelerator import Accelerator
from zerobench.ranks import Pool
from zerobench.suites.compat import loops, oracle

_WORLD = 4


def _backend(group: dist.ProcessGroup) -> tuple[Any, ...]:
    comm = loops.deepspeed().comm.comm
    total = torch.ones(3) * (1 + dist.get_rank())
    comm.cdb.all_reduce(total)
    added = comm.timed_op(lambda a, b=1, **names: a + b)
    return comm.cdb.is_initialized(), comm.cdb.get_world_size(), total.tolist(), added(1, b=2, prof=True, log_name="x")


def test_the_backend(pool: Pool) -> None:
    """``cdb`` has the collectives and the group's size; a timed function is called as it is."""
    assert pool.run(_backend, world=_WORLD) == [(True, _WORLD, [10.0] * 3, 3)] * _WORLD


def test_before_a_group() -> None:
    """``cdb`` is None, by which scripts ask whether a group runs; MPI's ranks are found by name."""
    loops.deepspeed()
    comm = importlib.import_module("deepspeed.comm.comm")
    assert comm.cdb is None
    assert not comm.is_initialized()


def test_ranks_of_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """``mpi_discovery`` sets the variables that torch reads; without a launcher it is an error."""
    comm = importlib.import_module("zerobench.compat.comm.comm")
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "SLURM_")) or name in comm.VARIABLES:
            monkeypatch.delenv(name)
    with pytest.raises(RuntimeError, match="no launcher has set the rank of this process"):
        comm.mpi_discovery()
    for name, value in {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    for name in comm.VARIABLES:  # so that they are taken away after the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1234")
    comm.mpi_discovery()
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["3", "4", "1"]
    assert [os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT")] == ["10.0.0.1", "1234"]


def test_memory_of_the_host() -> None:
    """On a CPU the memory is that of this process, and the peak that of the calls since the last reset."""
    accelerator = Accelerator("cpu")
    before = accelerator.memory_allocated()
    kept = torch.ones(8 << 20)
    assert accelerator.memory_allocated() - before > 16 << 20
    most = accelerator.max_memory_allocated()
    del kept
    assert accelerator.max_memory_allocated() == most
    assert accelerator.memory_stats()["allocated_bytes.all.peak"] == most
    assert accelerator.memory_reserved() < most
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_reserved() < most


def test_the_accelerator_is_set() -> None:
    """The one of this process can be set, and no other."""
    module = importlib.import_module("zerobench.compat.accelerator.accelerator")
    module.set_accelerator(module.get_accelerator())
    with pytest.raises(NotImplementedError, match="takes get_accelerator"):
        module.set_accelerator(object())


def _names_of_the_cpu() -> set[str]:
    from deepspeed.accelerator import cpu_accelerator

    return {name for name in dir(cpu_accelerator.CPU_Accelerator) if not name.startswith("_")}


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
def test_names_of_the_accelerator() -> None:
    """Each public name of DeepSpeed's accelerator is there, but two of its own."""
    lacking = {name for name in oracle.ask(_names_of_the_cpu) if not hasattr(Accelerator("cpu"), name)}
    assert lacking <= {"get_rss", "reset_rss"}


def _built(group: dist.ProcessGroup) -> list[bool]:
    deepspeed = loops.deepspeed()
    parameters = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    with deepspeed.zero.Init():
        first = nn.Linear(4, 4)
        parameters.shutdown_init_context()
        plain = nn.Linear(4, 4)
        parameters.restore_init_context()
        last = nn.Linear(4, 4)
    parameters.shutdown_init_context()  # outside of a context it does nothing
    with deepspeed.zero.Init():
        other = nn.Linear(4, 4)
    return [hasattr(each.weight, "ds_id") for each in (first, plain, last, other)]


def test_a_context_is_interrupted(pool: Pool) -> None:
    """Modules between shutdown_init_context() and restore_init_context() are plain."""
    assert pool.run(_built, world=_WORLD) == [[True, False, True, True]] * _WORLD
