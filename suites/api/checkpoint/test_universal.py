"""DeepSpeed's universal checkpoints without DeepSpeed: loaded at every stage, and damaged ones."""

from __future__ import annotations

import os
import random
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zerobench
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.engine.checkpoint.offline import read_weights
from zerobench.suites.api.checkpoint import saved
from zerobench.suites.api.checkpoint.loading import comparable, demand_refused
from zerobench.suites.api.checkpoint.spoiling import RunsCode, replace_by_link, rewrite
from zerobench.suites.api.checkpoint.universal import convert

_TAG = "global_step2"
_WEIGHT = "zero/body.0.weight"
_MODEL = "mp_rank_00_model_states.pt"


def _universal(own: Path, directory: Path, stage: int, world: int) -> Path:
    """The folder of a universal checkpoint, of DeepSpeed's ``stage`` on ``world`` ranks."""
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "sub_group_size": 150}}
    zerobench.export_deepspeed_checkpoint(own, directory, config, world)
    convert(directory / _TAG, directory / "universal")
    return directory / "universal"


@pytest.fixture
def universal(own: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The checkpoint in the universal layout, of two ranks at stage 2; without the one that it was made of."""
    folder = _universal(own[0], tmp_path, 2, 2)
    shutil.rmtree(tmp_path / _TAG)
    (tmp_path / "latest").unlink()
    return folder


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_load(own: tuple[Path, dict[str, Any]], stage: int, world: int, tmp_path: Path) -> None:
    """An engine that loads it has every state, frozen parameters and buffers among them, and trains on."""
    folder = _universal(own[0], tmp_path, stage, world)
    for into in (0, 3):
        loading = saved.engine(1, zero_optimization={"stage": into, "chunk_size": 32})
        assert loading.load_checkpoint(tmp_path, "universal") == (str(folder), {})
        assert comparable(saved.states(loading)) == comparable(own[1])
        saved.train(loading)


@pytest.mark.parametrize("stage", [1, 3])
def test_without_an_engine(own: tuple[Path, dict[str, Any]], stage: int, tmp_path: Path) -> None:
    """Its weights, its numbers and the check of every file need no engine."""
    folder = _universal(own[0], tmp_path, stage, 2)
    weights, expected = read_weights(tmp_path, "universal"), read_weights(own[0])
    assert weights.keys() == expected.keys()
    assert all(value.equal(weights[name]) for name, value in expected.items())
    found = zerobench.describe_checkpoint(tmp_path, "universal")
    assert (found["global_steps"], found["world"], found["written_by"]) == (2, 2, "DeepSpeed 0.19.8")
    trained = [folder / name for name in found["files"]]
    assert folder / _WEIGHT / "exp_avg.pt" in trained
    assert zerobench.verify_checkpoint(tmp_path, "universal") == sum(path.stat().st_size for path in trained)


def test_the_latest(universal: Path) -> None:
    """If there is no ``latest``, that of the conversion is loaded."""
    loading = saved.engine(1)
    assert loading.load_checkpoint(universal.parent)[0] == str(universal)
    loading.save_checkpoint(universal.parent, "own")
    assert loading.load_checkpoint(universal.parent)[0] == str(universal.parent / "own")


@pytest.mark.parametrize(
    "name", ["zero/optimizer_state.pt", f"{_WEIGHT}/fp32.pt", f"{_WEIGHT}/exp_avg.pt", f"{_WEIGHT}/step.pt", _MODEL]
)
def test_no_file_can_run_code(name: str, universal: Path) -> None:
    """A file of each kind that would run code is refused, and is not run."""
    torch.save({"param": RunsCode(universal / "ran")}, universal / name)
    demand_refused(saved.engine(1), universal.parent, r"names posix\.mkdir, which no checkpoint .* could run code")
    assert not (universal / "ran").exists()


def _move_out(path: Path) -> None:
    path.rename(path.parent.parent.parent / "outside")
    path.symlink_to(path.parent.parent.parent / "outside")


def _climb(model: Path) -> None:
    """Name a parameter so that its folder lies outside."""
    content = pickles.read(model)
    [shapes] = content["param_shapes"]
    content["param_shapes"] = [OrderedDict({"../../body.0.weight": shapes.pop("body.0.weight"), **shapes})]
    rewrite(model, content)


def _round_robin(model: Path) -> None:
    content = pickles.read(model)
    content["ds_config"]["zero_optimization"]["round_robin_gradients"] = True
    rewrite(model, content)


def _extra_state(path: Path) -> None:
    shutil.copy(path, path.with_name("max_exp_avg_sq.pt"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: shutil.rmtree(d / _WEIGHT), "has no folder 'zero' with a folder of parameter 'body.0.weight' in it"),
        (lambda d: (d / _WEIGHT / "fp32.pt").unlink(), "could not find 'fp32.pt', .*body.0.weight'"),
        (lambda d: (d / _WEIGHT / "exp_avg.pt").unlink(), "tensor 'exp_avg.body.0.weight' is missing"),
        (lambda d: (d / "zero/optimizer_state.pt").unlink(), "could not find 'optimizer_state.pt'"),
        (lambda d: (d / _MODEL).unlink(), "has neither 'mp_rank_00_model_states.pt' nor"),
        (lambda d: shutil.rmtree(d / "zero"), "has no file of the optimizer: neither '.*_optim_states.pt' nor"),
        (lambda d: _move_out(d / _WEIGHT), "parameter 'body.0.weight' lie outside .*symbolic link"),
        (lambda d: _move_out(d / "zero"), "lie outside .*symbolic link"),
        (lambda d: replace_by_link(d / _WEIGHT / "fp32.pt"), "'fp32.pt' in .* is not a plain file"),
        (lambda d: _climb(d / _MODEL), r"parameter '\.\./\.\./body.0.weight' lie outside"),
        (lambda d: _round_robin(d / _MODEL), "conversion gives parameters the states of others"),
        (lambda d: os.truncate(d / _WEIGHT / "fp32.pt", 900), "'fp32.pt' in .* is damaged"),
        (lambda d: rewrite(d / _WEIGHT / "fp32.pt", torch.zeros(7)), "'fp32.pt' of parameter .* has 7 elements, and"),
        (lambda d: rewrite(d / _WEIGHT / "fp32.pt", [1]), "is no checkpoint of DeepSpeed's, or of a version"),
        (lambda d: rewrite(d / _WEIGHT / "step.pt", "many"), "is no checkpoint of DeepSpeed's, or of a version"),
        (lambda d: rewrite(d / _WEIGHT / "step.pt", float("inf")), "is no checkpoint of DeepSpeed's, or of a version"),
        (lambda d: rewrite(d / "zero/optimizer_state.pt", {}), "is no checkpoint of DeepSpeed's, or of a version"),
        (lambda d: _extra_state(d / _WEIGHT / "exp_avg_sq.pt"), "the optimizer has the rule of another kind"),
    ],
)
def test_spoilt_directory(spoil: Callable[[Path], Any], message: str, universal: Path) -> None:
    """Each is one error, and nothing changes."""
    spoil(universal)
    demand_refused(saved.engine(1), universal.parent, message)


def test_files_of_other_tensors_are_ignored(own: tuple[Path, dict[str, Any]], universal: Path) -> None:
    """The conversion also writes rounded copies of tensors that do not train; the model's file has them."""
    for name in ("frozen.weight", "scale", "of_another_model"):
        (universal / "zero" / name).mkdir(exist_ok=True)
        torch.save({"param": torch.zeros(3)}, universal / "zero" / name / "fp32.pt")
    loading = saved.engine(1)
    loading.load_checkpoint(universal.parent)
    assert comparable(saved.states(loading)) == comparable(own[1])


@pytest.mark.parametrize("part", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 10))])
def test_one_flipped_bit(part: int, own: tuple[Path, dict[str, Any]], universal: Path) -> None:
    """Wherever a bit of its files flips, the load raises a CheckpointError, or it loads the right state."""
    draws, loading, refused = random.Random(part), saved.engine(1), 0  # noqa: S311 - the draws of a test
    before = comparable(saved.states(loading))
    files = sorted(path for path in universal.rglob("*.pt") if "frozen" not in str(path) and "scale" not in str(path))
    for _ in range(30):
        path = draws.choice(files)
        content = path.read_bytes()
        bit = draws.randrange(len(content) * 8)
        path.write_bytes(bytes([*content[: bit // 8], content[bit // 8] ^ 1 << bit % 8, *content[bit // 8 + 1 :]]))
        try:
            loading.load_checkpoint(universal.parent)
        except zerobench.CheckpointError:
            refused += 1
        else:
            before = comparable(own[1])
        assert comparable(saved.states(loading)) == before
        path.write_bytes(content)
    assert refused > 5
