"""Damaged and unsuitable checkpoints: one clear error and an unchanged engine, or a correct load; never a wrong one."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zerobench
from zerobench.engine.checkpoint import record
from zerobench.engine.checkpoint.directory import read_latest
from zerobench.suites.api.checkpoint import saved
from zerobench.suites.api.checkpoint.loading import demand_refused
from zerobench.suites.api.checkpoint.spoiling import RunsCode

#: The names that tests give to the two checkpoints of the fixture.
_LAST = "global_step2"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A directory with two checkpoints, and the states of the last."""
    directory = tmp_path_factory.mktemp("checkpoints")
    running = saved.save_twice(directory)
    return directory, saved.states(running)


@pytest.fixture
def copy(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of the directory, to be spoilt."""
    return Path(shutil.copytree(whole[0], tmp_path / "copy"))


def _rewrite(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the record, with the right checksum."""
    path = directory / _LAST / record.FILE
    raw = json.loads(path.read_text(encoding="utf-8"))
    del raw["digest"]
    change(raw)
    rest = json.dumps(raw).removeprefix("{").encode()
    path.write_bytes(record._first_line(rest) + rest)


def _shard(directory: Path) -> Path:
    return directory / _LAST / "rank-00000.safetensors"


def _truncate(directory: Path) -> None:
    os.truncate(_shard(directory), _shard(directory).stat().st_size - 1)


def _link(directory: Path) -> None:
    elsewhere = directory.parent / "elsewhere.safetensors"
    _shard(directory).rename(elsewhere)
    _shard(directory).symlink_to(elsewhere)


def _move_out(directory: Path) -> None:
    (directory / _LAST).rename(directory.parent / "outside")
    (directory / _LAST).symlink_to(directory.parent / "outside")


def _fifo(directory: Path) -> None:
    _shard(directory).unlink()
    os.mkfifo(_shard(directory))


def _climb(raw: dict[str, Any]) -> None:
    raw["files"]["../../rank-00000.safetensors"] = next(iter(raw["files"].values()))


def _drop_a_tensor(raw: dict[str, Any]) -> None:
    del raw["tensors"]["exp_avg.body.0.weight"]


def _leave_a_gap(raw: dict[str, Any]) -> None:
    raw["tensors"]["exp_avg.body.0.weight"]["chunks"][0]["offset"] = 1


def _leave_the_file(raw: dict[str, Any]) -> None:
    raw["tensors"]["exp_avg.body.0.weight"]["chunks"][0]["begin"] = 10**9


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: _shard(d).unlink(), r"could not find 'rank-00000.safetensors', .*: No such file"),
        (_truncate, r"has \d+ bytes, and the saved file had \d+ bytes; load another tag"),
        (_link, "is not a plain file"),
        (_fifo, "is not a plain file"),
        (_move_out, "is a symbolic link out of the directory; load from .*outside"),
        (lambda d: (d / _LAST / record.FILE).unlink(), r"could not read 'checkpoint.json' in .*: No such file"),
        (lambda d: shutil.rmtree(d / _LAST), r"has no checkpoint 'global_step2' \(it has: global_step1\)"),
        (lambda d: (d / "latest").write_text("global_step3\n"), "does not end with the checksum of its tag"),
        (lambda d: (d / "latest").write_text("x" * 1000), "does not end with the checksum of its tag"),
        (lambda d: (d / "latest").write_text(""), "does not end with the checksum of its tag"),
        (lambda d: _rewrite(d, lambda raw: raw.update(version=2)), "has version 2 of the format.*reads version 1"),
        (lambda d: _rewrite(d, lambda raw: raw.update(version=0)), "has version 0 of the format"),
        (lambda d: _rewrite(d, lambda raw: raw.update(format="other")), "has the format 'other', not 'zerobench"),
        (lambda d: _rewrite(d, lambda raw: raw.update(extra=1)), "is no record of a checkpoint: extra: "),
        (lambda d: _rewrite(d, _climb), r"is no record of a checkpoint: files\.\.\./"),
        (lambda d: _rewrite(d, _drop_a_tensor), "tensor 'exp_avg.body.0.weight' is missing"),
        (lambda d: _rewrite(d, _leave_a_gap), "the chunks of 'exp_avg.body.0.weight' are not the tensor"),
        (lambda d: _rewrite(d, _leave_the_file), "the chunks of 'exp_avg.body.0.weight' are not the tensor"),
    ],
)
def test_spoilt_directory(spoil: Callable[[Path], Any], message: str, copy: Path) -> None:
    """Each is one error that names the file, and nothing changes."""
    spoil(copy)
    demand_refused(saved.engine(1), copy, message)


def test_an_extra_file_is_ignored(whole: tuple[Path, dict[str, Any]], copy: Path) -> None:
    """Only the files of the record are read."""
    shutil.copy(_shard(copy), copy / _LAST / "rank-00001.safetensors")
    (copy / ".global_step3.saving-0").mkdir()
    loading = saved.engine(1)
    loading.load_checkpoint(copy)
    assert saved.states(loading) == whole[1]


@pytest.mark.parametrize("name", ["latest", f"{_LAST}/{record.FILE}", f"{_LAST}/rank-00000.safetensors"])
def test_no_file_can_run_code(name: str, copy: Path) -> None:
    """A pickle in the place of any file is refused, and not run, even if it has the size of the file."""
    size = (copy / name).stat().st_size
    (copy / name).write_bytes(pickle.dumps(RunsCode(copy / "ran")).ljust(size, b"\0"))
    demand_refused(saved.engine(1), copy, "damaged|cannot be read|wrong")
    assert not (copy / "ran").exists()


def _flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, bit // 8)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit % 8]), bit // 8)


@pytest.mark.parametrize("part", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 20))])
def test_one_flipped_bit(part: int, whole: tuple[Path, dict[str, Any]], copy: Path) -> None:
    """Wherever a bit flips, the load raises a CheckpointError and changes nothing, or it loads the right state."""
    draws, loading = random.Random(part), saved.engine(1)  # noqa: S311 - the draws of a test
    before, refused = saved.states(loading), 0
    files = [copy / "latest", *(copy / _LAST).iterdir()]
    for _ in range(50):
        path = draws.choice(files)
        bit = draws.randrange(path.stat().st_size * 8)
        _flip(path, bit)
        try:
            loading.load_checkpoint(copy)
        except zerobench.CheckpointError:
            refused += 1
            assert saved.states(loading) == before
        else:
            assert saved.states(loading) == whole[1]
            before = whole[1]
        _flip(path, bit)
    assert refused > 25


def _config(**config: Any) -> dict[str, Any]:
    return config


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        (
            saved.Model(width=48),
            {},
            r"parameter 'body.0.weight' has the shape \(40, 8\) in the checkpoint and \(48",
        ),
        (nn.Sequential(saved.Model()), {}, r"the checkpoint has no parameter '0.body.0.weight' \(nearest: 'body.0.w"),
        (None, {"bf16": {"enabled": False}}, "the model has the dtype bf16 in the checkpoint and fp32 in the engine"),
        (None, {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, "the optimizer has the rule Adam in the ch"),
        (
            None,
            {"optimizer": {"type": "Lion", "params": {"lr": 0.1}}},
            "rule Adam .* and Lion in the engine; pass load_optimizer_states=False",
        ),
    ],
)
def test_another_engine(model: nn.Module | None, config: dict[str, Any], message: str, copy: Path) -> None:
    """A checkpoint of another model, dtype or optimizer is refused, with the first difference."""
    demand_refused(saved.engine(1, model, **config), copy, message)


def test_another_buffer_order_of_elements_or_group(copy: Path) -> None:
    """So is one whose buffer, memory order or groups differ."""
    model = saved.Model()
    model.register_buffer("other", torch.zeros(1))
    demand_refused(saved.engine(1, model), copy, "the checkpoint has no buffer 'other'")
    model = saved.Model()
    model.scale = torch.ones(4)
    demand_refused(saved.engine(1, model), copy, "buffer 'scale' has the shape and dtype")
    model = saved.Model()
    model.body[0].weight = nn.Parameter(torch.randn(8, 40).T)
    demand_refused(saved.engine(1, model), copy, r"stride \(8, 1\) in the checkpoint and .*; give the model the memory")


def test_the_default_is_the_latest(copy: Path, tmp_path: Path) -> None:
    """Without a tag the latest is loaded; if there is none, nothing is, as in DeepSpeed."""
    loading = saved.engine(1)
    assert loading.load_checkpoint(copy)[0] == str(copy / _LAST)
    assert loading.load_checkpoint(copy, "global_step1")[0] == str(copy / "global_step1")
    assert loading.global_steps == 1
    assert loading.load_checkpoint(tmp_path / "nothing") == (None, {})
    assert loading.global_steps == 1
    loading.save_checkpoint(copy, tag=7, save_latest=False)
    assert loading.load_checkpoint(copy)[0] == str(copy / _LAST)


@pytest.mark.parametrize("text", ["global_step1", "global_step1\n", " global_step1 \r\n"])
def test_a_latest_by_hand(text: str, copy: Path) -> None:
    """Users of DeepSpeed write a tag to ``latest`` to go back to it."""
    (copy / "latest").write_text(text)
    loading = saved.engine(1)
    assert loading.load_checkpoint(copy)[0] == str(copy / "global_step1")


@pytest.mark.parametrize("older", ["g", "global_step", "global_step1"])
def test_each_cut_of_latest(older: str, copy: Path) -> None:
    """A file that was cut off gives its own tag or an error, never an older tag that begins alike."""
    whole = (copy / "latest").read_bytes()
    if older != "global_step1":
        (copy / "global_step1").rename(copy / older)
    found = {_latest_of(copy, whole[:size]) for size in range(len(whole))}
    assert found == {None, _LAST}


def _latest_of(directory: Path, text: bytes) -> str | None:
    """The tag that is read; None if it is refused."""
    (directory / "latest").write_bytes(text)
    try:
        return read_latest(directory)
    except zerobench.CheckpointError:
        return None


@pytest.mark.parametrize("tag", ["../up", "", ".hidden", "latest", "a/b", "two\nlines"])
def test_tags_are_file_names(tag: str, copy: Path) -> None:
    """A tag cannot name a place outside the directory."""
    running = saved.engine(1)
    with pytest.raises(zerobench.CheckpointError, match="a tag must be a file name"):
        running.save_checkpoint(copy, tag=tag)
    demand_refused(running, copy, "a tag must be a file name", tag=tag)


def test_parts_of_a_checkpoint(copy: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    """The module alone, also in another dtype; without optimizer states; and the names that both models have."""
    module_only = saved.engine(1, bf16={"enabled": False})
    module_only.load_checkpoint(copy, load_module_only=True)
    found, expected = saved.states(module_only), whole[1]
    assert found["states of body.0.weight"][0] == expected["states of body.0.weight"][0]
    assert found["other"][1][:3] == (0, 0, 0)
    without = saved.engine(1)
    without.load_checkpoint(copy, load_optimizer_states=False)
    states = saved.states(without)["states of body.0.weight"]
    assert states[0] == expected["states of body.0.weight"][0]
    assert not torch.tensor(states[1:]).any()
    assert without.global_steps == 2
    partly = saved.engine(1, nn.ModuleDict({"body": saved.Model().body, "head": nn.Linear(2, 2)}))
    partly.load_checkpoint(copy, load_module_strict=False)
    assert saved.states(partly)["states of body.0.weight"] == expected["states of body.0.weight"]


def test_full_disk(copy: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    """If the drive has no room, the save raises, removes what it has written, and leaves older checkpoints alone."""
    running = saved.engine(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(zerobench.CheckpointError, match=r"could not write 'rank-00000.* File too large; free some"):
            running.save_checkpoint(copy, tag=_LAST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(each.name for each in copy.iterdir()) == ["global_step1", _LAST, "latest"]
    running.load_checkpoint(copy)
    assert saved.states(running) == whole[1]
