"""A store returns copies of the unit that the caller asks for, in any order."""

from __future__ import annotations

import threading
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerobench
from zerobench.engine.comm.collectives import Handle
from zerobench.engine.state.copies import Copies, to_host
from zerobench.engine.state.pages import PAGE, page_memory
from zerobench.engine.state.scratch import ScratchFile
from zerobench.engine.state.stores import same_bits
from zerobench.engine.state.unit import UnitState

_PIPELINE = {"pipeline_read": True, "pipeline_write": True}
#: Values of ``offload_optimizer`` and ``offload_param``.
STORES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "device": ({}, {}),
    "host": ({"device": "cpu"}, {"device": "cpu"}),
    "files": ({"device": "nvme"}, {"device": "nvme"}),
    "files-pipelined": ({"device": "nvme", **_PIPELINE}, {"device": "nvme"}),
}


@pytest.fixture(params=STORES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An engine of three units of several sub-groups, between a backward and its step."""
    optimizer, param = STORES[request.param]
    path = {"nvme_path": str(tmp_path)} if "nvme" in str(optimizer) else {}
    buffers = {"buffer_count": 2, "buffer_size": 8192} if path else {}
    param = {**param, **path, **buffers, **({"max_in_cpu": 0} if path else {})}
    zero = {"stage": 3, "chunk_size": 32, "sub_group_size": 64, "stage3_param_persistence_threshold": 0}
    offload = {"offload_optimizer": {**optimizer, **path, **buffers}, "offload_param": param}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 24), nn.Linear(24, 5))
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "zero_optimization": {**zero, **offload}}
    built, *_ = zerobench.initialize(model, config)
    built.backward(built(torch.ones(1, 8)).sum())
    yield built
    built.destroy()


def _masters(state: UnitState) -> Tensor:
    """The unit's master as the update sees it."""
    return torch.cat([part.master.clone() for part in state.optimizer_store.update_slices(state.portion)])


def _read(state: UnitState, name: str = "master") -> Tensor:
    return state.optimizer_store.read(state.portion, name, 0, state.portion.elements)


def test_units_in_any_order(engine: Any) -> None:
    """Each unit gets its own states, in any order of requests, also if one is asked for twice or not at all."""
    expected = {state: _read(state) for state in engine.states}
    assert len({tuple(master.tolist()) for master in expected.values()}) == 3
    orders = [*permutations(engine.states), *permutations(engine.states, 2), [*engine.states, engine.states[0]]]
    for order in orders:
        for state in order:
            assert torch.equal(_masters(state), expected[state])
    assert all(torch.equal(_read(state), expected[state]) for state in engine.states)


def test_an_update_that_stops_early(engine: Any) -> None:
    """No other update uses the slices read ahead for it."""
    first, second, third = engine.states
    expected = {state: _read(state) for state in engine.states}
    for state in (second, third, first, third):
        next(first.optimizer_store.update_slices(first.portion))
        assert torch.equal(_masters(state), expected[state])


def test_an_edit_after_reading_ahead(engine: Any) -> None:
    """The update sees it."""
    first, second, _ = engine.states
    for state in (first, second):
        next(first.optimizer_store.update_slices(first.portion))
        with state.optimizer_store.edit_master(state.portion, 0, state.portion.elements) as master:
            master.fill_(7.0)
        assert (_masters(state) == 7.0).all()


def test_reads_are_copies(engine: Any) -> None:
    """Writing to them changes no state."""
    for state in engine.states:
        for name in ("master", "exp_avg", "gradient"):
            before = _read(state, name)
            _read(state, name).fill_(9.0)
            assert same_bits(_read(state, name), before)  # padding may hold NaN
            assert same_bits(state.optimizer_store.read(state.portion, name, 3, 40), before[3:40])


def test_edits_are_written_back(engine: Any) -> None:
    """Only the requested elements change, and only if the block ends without an exception."""
    for state in engine.states:
        store, before = state.optimizer_store, _read(state)
        with store.edit_master(state.portion, 5, 70) as master:
            assert torch.equal(master, before[5:70])
            master.add_(1.0)
        with pytest.raises(ArithmeticError), store.edit_master(state.portion, 0, 70) as master:
            _fail(master.fill_(9.0))
        edited = before.clone()
        edited[5:70] += 1.0
        assert torch.equal(_read(state), edited)
        with state.parameter_store.edit() as shard:
            shard.fill_(3.0)
        with pytest.raises(ArithmeticError), state.parameter_store.edit() as shard:
            _fail(shard.fill_(9.0))
        assert (state.parameter_store.load() == 3.0).all()


def test_edits_that_are_written_together(engine: Any) -> None:
    """They reach the store, also if readings come between."""
    for state in engine.states:
        store, expected = state.optimizer_store, _read(state)
        with store.editing():
            for start in (3, 40, 70, 10):  # the last one is in a sub-group that was left
                store.write(state.portion, "master", start, torch.full((5,), float(start)))
                expected[start : start + 5] = start
                assert torch.equal(_read(state), expected)
            store.write(state.portion, "exp_avg", 3, torch.ones(2))
        assert torch.equal(_masters(state), expected)
        assert _read(state, "exp_avg")[3:5].tolist() == [1.0, 1.0]


def test_chunks_of_a_sum_that_are_taken_again(engine: Any) -> None:
    """The update has the new chunks and their sums of squares, and keeps the others'."""
    for state in engine.states:
        store, total = state.optimizer_store, state.read("gradient", 0, state.unit.shard)
        fresh = torch.full((32,), 0.5)
        total[32:64] = 0.5
        if state.own_gradient.numel() == state.unit.shard:
            state.own_gradient[32:64] = 0.5
        store.retake(state.portion, 32, fresh)
        gradient = torch.cat([part.gradient.clone() for part in store.update_slices(state.portion)])
        assert torch.equal(gradient, total)
        assert torch.equal(store.sums(state.portion)[1], fresh.double().square().sum())


def _fail(_: object) -> None:
    raise ArithmeticError


def test_sums_out_of_order(tmp_path: Path) -> None:
    """A file's buffer holds one sub-group's sum at a time: ranges that do not follow each other are an error."""
    zero = {
        "stage": 2,
        "chunk_size": 32,
        "sub_group_size": 64,
        "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)},
    }
    config = {"train_batch_size": 1, "optimizer": {"type": "SGD"}, "zero_optimization": zero}
    built, *_ = zerobench.initialize(nn.Linear(16, 16, bias=False), config)
    [state] = built.states
    state.optimizer_store.take(state.portion, 0, 32, torch.ones(32))
    _read(state)
    with pytest.raises(RuntimeError, match="must come in order and without gaps"):
        state.optimizer_store.take(state.portion, 32, 64, torch.ones(32))
    built.destroy()


class _Arrives:
    """A handle that waits until the test lets it end, or for 10 seconds."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def wait(self) -> None:
        self.event.wait(10.0)


def test_writes_at_an_offset_keep_their_order(tmp_path: Path) -> None:
    """If the first values of a place arrive after the second ones, the file has the second ones, and a read waits for
    them: a client that edits a gradient writes it while the step's own write may be pending."""
    file, late = ScratchFile(tmp_path, torch.device("cpu")), _Arrives()
    at, values = file.reserve(PAGE), [page_memory(PAGE, pin=False).fill_(number) for number in (1, 2)]
    first = file.write(at, values[0], late)
    second = file.write(at, values[1])
    release = threading.Timer(0.2, late.event.set)  # by then the second write would be over
    release.start()
    found = page_memory(PAGE, pin=False)
    file.read(at, found).wait()
    first.wait()
    second.wait()
    after = page_memory(PAGE, pin=False)
    file.read(at, after).wait()
    file.close()
    assert [set(each.tolist()) for each in (found, after)] == [{2}, {2}]


class _Pending(Copies):
    """A stream that never works before it must; ``most`` is the number of bytes that it had to copy at once."""

    most = 0

    def _start(self, stream: Any, copy: Any, source: Tensor, target: Tensor, after: Handle | None = None) -> Handle:
        handle = super()._start(stream, copy, source, target, after)
        return _Counted(source.nbytes) if copy is to_host else handle


class _Counted:
    """A copy in flight until somebody waits for it."""

    now = 0

    def __init__(self, size: int) -> None:
        self.size = size
        _Counted.now += size
        _Pending.most = max(_Pending.most, _Counted.now)

    def wait(self) -> None:
        _Counted.now -= self.size
        self.size = 0


@pytest.mark.parametrize("device", ["cpu", "none"])
def test_copies_in_flight(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Where copies are slower than backward or the update, no more of them are in flight than may be: each keeps its
    memory on the device, which would hold the gradients or the parameters of the whole model."""
    layer = 4 * 64 * 64
    monkeypatch.setattr("zerobench.engine.state.assignment.Copies", _Pending)
    monkeypatch.setattr("zerobench.engine.state.copies._BYTES", 2 * layer)
    _Pending.most = _Counted.now = 0
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(12)))
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": {"device": "cpu"}}
    config = {"train_batch_size": 1, "zero_optimization": {**zero, "offload_optimizer": {"device": device}}}
    engine, *_ = zerobench.initialize(model, {**config, "optimizer": {"type": "Adam"}})
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 64)).sum())
        engine.step()
    engine.destroy()
    assert layer < _Pending.most <= 3 * layer
