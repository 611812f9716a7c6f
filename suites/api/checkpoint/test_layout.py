"""DeepSpeed's layout without DeepSpeed: exported for any stage and number of ranks, and loaded back; damaged files."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import pickletools
import random
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zerobench
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.engine.checkpoint.offline import read_weights
from zerobench.suites.api.checkpoint import saved
from zerobench.suites.api.checkpoint.loading import comparable, demand_refused
from zerobench.suites.api.checkpoint.spoiling import RunsCode, replace_by_link

_STAGE_3 = {"zero_optimization": {"stage": 3, "sub_group_size": 150}, "bf16": {"enabled": True}}
_STAGE_2 = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
_TAG = "global_step2"


@pytest.fixture
def exported(own: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The checkpoint in DeepSpeed's layout, of two ranks at stage 2."""
    zerobench.export_deepspeed_checkpoint(own[0], tmp_path / "exported", _STAGE_2, world=2)
    return tmp_path / "exported"


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / _TAG).iterdir())


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("stage", range(4))
def test_there_and_back(own: tuple[Path, dict[str, Any]], stage: int, world: int, tmp_path: Path) -> None:
    """An engine that loads what was exported has every state."""
    config = {**_STAGE_3, "zero_optimization": {"stage": stage, "sub_group_size": 150}}
    zerobench.export_deepspeed_checkpoint(own[0], tmp_path, config, world)
    loading = saved.engine(1)
    path, client_state = loading.load_checkpoint(tmp_path)
    assert (path, client_state) == (str(tmp_path / _TAG), {})
    assert comparable(saved.states(loading)) == comparable(own[1])
    saved.train(loading)


@pytest.mark.parametrize("scale", [0, 64])
def test_loss_scale_schedule_and_client_state(scale: int, tmp_path: Path) -> None:
    """The loss scale, the schedule, hyperparameters and the client's state come through, too."""
    config = {
        "bf16": {"enabled": False},
        "fp16": {"enabled": True, "loss_scale": scale, "initial_scale_power": 4, "loss_scale_window": 1},
        "zero_optimization": {"stage": 1},
    }
    given = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"momentum": 0.5}}, **config}

    def make(seed: int) -> zerobench.Engine:
        torch.manual_seed(seed)
        schedule: Any = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # noqa: E731
        return zerobench.initialize(saved.Model(), given, lr_scheduler=schedule)[0]

    one, other = make(0), make(1)
    saved.train(one, 3)
    client_state = {"epoch": 3, "seen": [1, 2], "weights": {"a": 0.5}}
    one.save_checkpoint(tmp_path / "own", client_state=client_state)
    zerobench.export_deepspeed_checkpoint(tmp_path / "own", tmp_path / "exported", given, world=2)
    assert other.load_checkpoint(tmp_path / "exported")[1] == client_state
    assert comparable(saved.states(other)) == comparable(saved.states(one))
    assert other.lr_scheduler.state_dict() == one.lr_scheduler.state_dict()
    assert other.loss_scale == one.loss_scale == (scale or 64)


def test_the_layout_is_deepspeeds(own: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """File names, ``latest``, the names of DeepSpeed's classes, and masters cut as its zero_to_fp32.py joins them."""
    zerobench.export_deepspeed_checkpoint(own[0], tmp_path, _STAGE_3, world=2)
    assert (tmp_path / "latest").read_bytes() == _TAG.encode()
    optimizers = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)]
    models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(2)]
    assert _files(tmp_path) == sorted([*models, *optimizers])
    assert _globals(tmp_path / _TAG / optimizers[0]) >= {"deepspeed.runtime.fp16.loss_scaler LossScaler"}
    with torch.serialization.safe_globals([(_Any, "deepspeed.runtime.fp16.loss_scaler.LossScaler")]):
        loaded = [torch.load(tmp_path / _TAG / name, weights_only=True)["optimizer_state_dict"] for name in optimizers]
    model = torch.load(tmp_path / _TAG / models[0], weights_only=True)
    flat = [torch.cat(each["fp32_flat_groups"]) for each in loaded]
    assert [len(each) for each in model["param_shapes"]] == [1, 3], "sub-groups of 150 elements"
    at = 0
    for name, shape in (pair for group in model["param_shapes"] for pair in group.items()):
        part = -(-shape.numel() // 2)
        value = torch.cat([each[at : at + part] for each in flat])[: shape.numel()].view(shape)
        assert value.tolist() == own[1][f"states of {name}"][0]
        at += part
    assert all(each.numel() == at for each in flat)


class _Any:
    """In place of a class of DeepSpeed's."""


def _globals(path: Path) -> set[str]:
    """The names that a file's pickle asks for."""
    with zipfile.ZipFile(path) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("data.pkl")]
        return {str(arg) for op, arg, _ in pickletools.genops(archive.read(name)) if op.name == "GLOBAL"}


def _save(path: Path, content: Any) -> None:
    torch.save(content, path)


@pytest.mark.parametrize("write", [_save, lambda path, content: path.write_bytes(pickle.dumps(content))])
@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"])
def test_no_file_can_run_code(name: str, write: Callable[[Path, Any], Any], exported: Path) -> None:
    """A file of either kind that would run code is refused, and is not run: as torch.save writes it, or a bare
    pickle."""
    write(
        exported / _TAG / name,
        {"module": RunsCode(exported / "ran"), "optimizer_state_dict": RunsCode(exported / "ran")},
    )
    demand_refused(
        saved.engine(1),
        exported,
        r"names posix\.mkdir, which no checkpoint .* could run code|was not written by torch\.save",
    )
    assert not (exported / "ran").exists()


_OBJECTS = {
    "arguments": Namespace(lr=0.1, path=Path("a"), lasted=dt.timedelta(1)),
    "when": dt.datetime(2020, 1, 2),  # noqa: DTZ001  # as datetime.now() gives it
    "numpy": [np.float64(0.1), (np.arange(6, dtype=np.int16).reshape(2, 3).T, np.array(["ab", "c"]))],
    "generator": np.random.RandomState(3).get_state(),  # as client states of Megatron
}


def test_objects_of_a_client_state(exported: Path) -> None:
    """NumPy's values, namespaces, paths and dates of a client state are loaded."""
    model = exported / _TAG / "mp_rank_00_model_states.pt"
    with torch.serialization.safe_globals(pickles._SAFE):
        torch.save(torch.load(model, weights_only=True) | _OBJECTS, model)
    state = saved.engine(1).load_checkpoint(exported)[1]
    assert repr(state) == repr(_OBJECTS)


class _Pointers:
    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((1,), np.dtype(object), b"\1" * 8)


@pytest.mark.parametrize("state", [_Pointers(), np.array([object], dtype=object), np.zeros(1, [("a", "i4")])])
def test_no_array_of_pointers(state: Any, exported: Path) -> None:
    """An array of anything but numbers and strings is refused."""
    model = exported / _TAG / "mp_rank_00_model_states.pt"
    _save(model, {"state": state})
    demand_refused(saved.engine(1), exported, "was not written by|could run code")


def test_latest_can_run_no_code(exported: Path) -> None:
    """Nor a pickle in the place of ``latest``."""
    (exported / "latest").write_bytes(pickle.dumps(RunsCode(exported / "ran")))
    demand_refused(saved.engine(1), exported, "damaged or was written by another program")
    assert not (exported / "ran").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink(), "of 1 ranks, and none of rank 0"),
        (lambda d: (d / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink(), "of 1 ranks, and was saved by 2"),
        (lambda d: [each.unlink() for each in d.glob("bf16*")], "has no file of the optimizer: neither"),
        (lambda d: (d / "mp_rank_00_model_states.pt").unlink(), "has neither 'mp_rank_00_model_states.pt' nor"),
        (lambda d: (d / "mp_rank_01_model_states.pt").touch(), "was saved with tensor or pipeline parallelism"),
        (lambda d: (d / "expp_rank_0_mp_rank_00_optim_states.pt").touch(), "was saved with .* experts"),
        (lambda d: os.truncate(d / "mp_rank_00_model_states.pt", 900), "is damaged or was not written by torch.save"),
        (lambda d: _save(d / "mp_rank_00_model_states.pt", [1]), "holds a list, not a dict"),
        (lambda d: _save(d / "mp_rank_00_model_states.pt", {}), "is no checkpoint of DeepSpeed's, or of a version"),
        (lambda d: replace_by_link(d / "mp_rank_00_model_states.pt"), "is not a plain file"),
        (lambda d: (d / "offloaded_tensors").mkdir(), "optimizer offloaded to NVMe: .* nobody can tell whose values"),
    ],
)
def test_spoilt_directory(spoil: Callable[[Path], Any], message: str, exported: Path) -> None:
    """Each is one error, and nothing changes."""
    spoil(exported / _TAG)
    demand_refused(saved.engine(1), exported, message)


def test_a_missing_rank_of_stage_3(own: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A file of the last rank that is missing is an error, also without an engine."""
    zerobench.export_deepspeed_checkpoint(own[0], tmp_path, _STAGE_3, world=2)
    (tmp_path / _TAG / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    demand_refused(saved.engine(1), tmp_path, "of 1 ranks, and was saved by 2")
    with pytest.raises(zerobench.CheckpointError, match="of 1 ranks, and was saved by 2"):
        zerobench.describe_checkpoint(tmp_path)


@pytest.mark.parametrize("part", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 20))])
def test_one_flipped_bit(part: int, own: tuple[Path, dict[str, Any]], exported: Path) -> None:
    """Wherever a bit of DeepSpeed's files flips, the load raises a CheckpointError, or it loads the right state."""
    draws, loading, refused = random.Random(part), saved.engine(1), 0  # noqa: S311 - the draws of a test
    before = comparable(saved.states(loading))
    whole = shutil.copytree(exported / _TAG, exported.parent / "whole")
    for _ in range(30):
        path = draws.choice(sorted((exported / _TAG).iterdir()))
        bit = draws.randrange(path.stat().st_size * 8)
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            loading.load_checkpoint(exported)
        except zerobench.CheckpointError:
            refused += 1
        else:
            before = comparable(own[1])
        assert comparable(saved.states(loading)) == before
        shutil.copy(whole / path.name, path)
    assert refused > 5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimization": {"stage": 4}}, "expected a stage from 0 to 3"),
        ({**_STAGE_2, "bf16": {}}, "was trained in bf16, and the configuration says fp32"),
        ({"zero_optimization": {"round_robin_gradients": True}}, "round_robin_gradients changes DeepSpeed's layout"),
        ({"fp16": {"hysteresis": "auto"}}, "the section fp16 is wrong"),
    ],
)
def test_a_configuration_that_cannot_be(
    config: dict[str, Any], message: str, own: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """An export that is not offered is one error, and writes nothing."""
    with pytest.raises(zerobench.CheckpointError, match=message):
        zerobench.export_deepspeed_checkpoint(own[0], tmp_path, config, world=2)
    assert list(tmp_path.iterdir()) == []


def test_step_counts_that_one_count_cannot_hold(tmp_path: Path) -> None:
    """DeepSpeed has one step count for a flat group, so two counts are refused there, and kept at stage 0."""

    class _Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.late, self.calls = nn.Linear(8, 8), nn.Linear(8, 1), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            out: torch.Tensor = (self.late(self.first(x)) if self.calls > 1 else self.first(x)).square().mean()
            return out

    running, loading = saved.engine(0, _Routed()), saved.engine(1, _Routed())
    saved.train(running, 2)
    running.save_checkpoint(tmp_path / "own")
    with pytest.raises(zerobench.CheckpointError, match=r"'late\.bias' has taken 1 steps and 'first\.bias' 2"):
        zerobench.export_deepspeed_checkpoint(tmp_path / "own", tmp_path / "exported", _STAGE_2, world=2)
    assert list((tmp_path / "exported").iterdir()) == []
    zerobench.export_deepspeed_checkpoint(tmp_path / "own", tmp_path / "exported", {"bf16": {"enabled": True}}, world=2)
    loading.load_checkpoint(tmp_path / "exported")
    assert comparable(saved.states(loading)) == comparable(saved.states(running))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_weights_and_numbers(stage: int, own: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Without an engine, the layout gives the same weights as ours, its numbers, and a check of every tensor."""
    load_file = pytest.importorskip("safetensors.torch", reason="the format's own reader").load_file
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
    zerobench.export_deepspeed_checkpoint(own[0], tmp_path, config, world=3)
    for source, name in ((own[0], "own"), (tmp_path, "foreign")):
        zerobench.export_checkpoint(source, tmp_path / f"{name}.safetensors")
    weights = [load_file(tmp_path / f"{name}.safetensors") for name in ("own", "foreign")]
    assert weights[0].keys() == weights[1].keys()
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())
    trained = [read_weights(source, frozen=False) for source in (own[0], tmp_path)]
    assert trained[0].keys() == trained[1].keys()
    assert all(value.equal(trained[0][name]) for name, value in trained[1].items())
    found, expected = zerobench.describe_checkpoint(tmp_path), zerobench.describe_checkpoint(own[0])
    for key in ("latest", "global_steps", "skipped_steps", "parameters", "leftovers"):
        assert found[key] == expected[key], key
    kinds = ("master", "exp_avg", "exp_avg_sq")
    assert {kind: found["bytes"][kind] for kind in kinds} == {kind: expected["bytes"][kind] for kind in kinds}
    sizes = {path.name: path.stat().st_size for path in (tmp_path / _TAG).iterdir()}
    assert (found["files"], zerobench.verify_checkpoint(tmp_path)) == (sizes, sum(sizes.values()))


def test_weights_without_names(own: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Stage 0 in 16 bits does not say which parameter a master is of, so its weights are refused, not guessed."""
    zerobench.export_deepspeed_checkpoint(own[0], tmp_path, {"bf16": {"enabled": True}}, world=1)
    with pytest.raises(zerobench.CheckpointError, match="does not name the parameters of its fp32 groups; load it"):
        zerobench.export_checkpoint(tmp_path, tmp_path / "weights.safetensors")
