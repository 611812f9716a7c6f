"""The engine on CUDA besides kernels, checked without a GPU by its calls of torch."""

from __future__ import annotations

import ctypes
import gc
import weakref
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import zerobench
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.gradients import GradientReducer
from zerobench.engine.ops.folding import fold
from zerobench.engine.ops.packing import pack
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.pages import PAGE, page_memory
from zerobench.engine.state.scratch import ScratchFile
from zerobench.engine.state.unit import UnitState


def test_file_threads_set_their_device(tmp_path: Path) -> None:
    """A thread that waits for a copy's event would otherwise make a context on device 0."""
    device = torch.device("cuda", 1)
    with mock.patch("torch.cuda.set_device") as chosen:
        file = ScratchFile(tmp_path, device)
        at = file.reserve(PAGE)
        file.write(at, page_memory(PAGE, pin=False)).wait()
        file.close()
    assert chosen.call_args_list
    assert {call.args for call in chosen.call_args_list} == {(device,)}


def test_pinned_memory_has_the_size_asked_for() -> None:
    """Exactly the pages are registered, and they are given back before they are unmapped."""
    runtime = mock.Mock()
    runtime.cudaHostRegister.return_value = 0
    with mock.patch("torch.cuda.cudart", return_value=runtime), mock.patch("torch.cuda.check_error") as check:
        memory = page_memory(3 * PAGE + 8, pin=True)
        registered = mock.call.cudaHostRegister(memory.data_ptr(), 3 * PAGE + 8, 0)
        assert runtime.mock_calls == [registered]
        check.assert_called_once_with(0)
        given_back: list[bytes] = []
        runtime.cudaHostUnregister.side_effect = lambda address: given_back.append(ctypes.string_at(address, 1))
        part = memory[1:]
        memory.fill_(7)
        del memory
        gc.collect()
        assert not given_back
        del part
        gc.collect()
    assert given_back == [b"\x07"]


def test_each_direction_has_its_stream() -> None:
    """A copy up waits for the copy down that wrote its values, and for no other."""
    streams = [mock.MagicMock(name="down"), mock.MagicMock(name="up")]
    with (
        mock.patch("torch.cuda.Stream", side_effect=streams),
        mock.patch("torch.cuda.stream") as used,
        mock.patch("torch.cuda.current_stream"),
        mock.patch.object(torch.Tensor, "record_stream"),
    ):
        copies = Copies(torch.device("cuda"), pin=False)
        down, up = streams
        values, host = torch.ones(4), torch.zeros(4)
        written = copies.down(values, host)
        copies.up(host, values, written)
        assert [call.args for call in used.call_args_list] == [(down,), (up,)]
        up.wait_event.assert_called_once_with(down.record_event.return_value)
        down.wait_event.assert_not_called()


def test_one_rank_moves_no_gradient() -> None:
    """If the sent values are the received ones, they are not copied."""
    ranks = Ranks.of(None)
    values = torch.ones(4)
    version = values._version
    ranks.all_to_all(values, values).wait()
    ranks.all_gather(values, values).wait()
    assert values._version == version


def test_one_rank_keeps_one_buffer_of_a_gradient() -> None:
    """The reducer of one rank hands the packed gradient to the fold itself."""
    engine, *_ = zerobench.initialize(
        nn.Linear(8, 8),
        {"train_batch_size": 1, "optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 2}},
    )
    with (
        mock.patch("zerobench.engine.gradients.fold", wraps=fold) as folded,
        mock.patch("zerobench.engine.gradients.pack", wraps=pack) as packed,
    ):
        engine.backward(engine(torch.ones(1, 8)).sum())
    engine.destroy()
    assert [call.args[1].data_ptr() for call in folded.call_args_list] == [
        call.args[0].data_ptr() for call in packed.call_args_list
    ]


def test_gradients_end_before_their_pack_is_sent() -> None:
    """While a unit's gradients are sent and folded, they are in memory once, and not in the parameters' tensors too."""
    model = nn.Linear(4, 4)
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2}}
    gradients: list[weakref.ref[torch.Tensor]] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: gradients.append(weakref.ref(p.grad)))  # type: ignore[no-untyped-call]
    engine, *_ = zerobench.initialize(model, config)
    alive = []
    send = GradientReducer._send

    def sent(reducer: GradientReducer, state: UnitState, flat: torch.Tensor) -> None:
        alive.append([each() is not None for each in gradients])
        send(reducer, state, flat)

    with mock.patch.object(GradientReducer, "_send", sent):
        engine.backward(engine(torch.ones(1, 4)).sum())
    engine.destroy()
    assert alive == [[False, False]]
