"""Checkpoints of every layout in an engine that they do not fit, or in the hands of a job that cannot read them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zerobench
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.suites.api.checkpoint import saved
from zerobench.suites.api.checkpoint.loading import demand_refused
from zerobench.suites.api.checkpoint.spoiling import rewrite
from zerobench.suites.api.checkpoint.universal import convert

pytestmark = pytest.mark.ci

_TAG, _UNIVERSAL = "global_step2", "global_step2_universal"
_BF16 = {"enabled": True}


def _schedule(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A directory with a checkpoint of this engine's, and the states that every layout has."""
    directory = tmp_path_factory.mktemp("own")
    return directory, _states(saved.save_twice(directory))


def _exported(stage: int) -> Callable[[Path, Path], Path]:
    def export(own: Path, directory: Path) -> Path:
        config = {"bf16": _BF16, "zero_optimization": {"stage": stage, "sub_group_size": 150}}
        zerobench.export_deepspeed_checkpoint(own, directory, config, world=2)
        return directory / _TAG

    return export


def _converted(stage: int) -> Callable[[Path, Path], Path]:
    def export(own: Path, directory: Path) -> Path:
        folder = _exported(stage)(own, directory)
        convert(folder, directory / _UNIVERSAL)
        return directory / _UNIVERSAL

    return export


#: Each makes the folder of a checkpoint from a directory of our own and an empty one.
_LAYOUTS: dict[str, Callable[[Path, Path], Path]] = {
    "own": lambda own, directory: Path(shutil.copytree(own / _TAG, directory / _TAG)),
    **{f"stage {stage}": _exported(stage) for stage in range(4)},
    **{f"universal of stage {stage}": _converted(stage) for stage in (1, 3)},
}


@pytest.fixture(params=_LAYOUTS)
def folder(request: pytest.FixtureRequest, own: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The folder of a checkpoint, in each layout."""
    return _LAYOUTS[request.param](own[0], tmp_path / "foreign")


@pytest.fixture(params=[name for name in _LAYOUTS if name != "own"])
def foreign(request: pytest.FixtureRequest, own: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The folder of a checkpoint, in each of DeepSpeed's layouts."""
    return _LAYOUTS[request.param](own[0], tmp_path / "foreign")


def _refused(engine: zerobench.Engine, folder: Path, message: str) -> None:
    demand_refused(engine, folder.parent, message, folder.name)


class _Renamed(saved.Model):
    """A model with another name of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = self.body
        del self.body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trunk(self.frozen(x)).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        (lambda: saved.Model(width=48), {}, "'body.0.weight' has the shape|has 320 elements"),
        (_Renamed, {}, r"no parameter '(trunk|body)\.0\.weight'|has no '?trunk"),
        (saved.Model, {"bf16": {"enabled": False}}, "dtype bf16 in the checkpoint and fp32 in the engine"),
        (saved.Model, {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, "optimizer has the rule Adam in the"),
        (saved.Model, {"optimizer": {"type": "Lion", "params": {"lr": 0.1}}}, "rule Adam .* and Lion in the engine"),
    ],
)
def test_another_engine(model: Callable[[], nn.Module], config: dict[str, Any], message: str, folder: Path) -> None:
    """A checkpoint of another model, with a renamed parameter, of another dtype or optimizer is refused."""
    _refused(saved.engine(1, model(), **config), folder, message)


def test_another_schedule(folder: Path) -> None:
    """So is one without the schedule that the engine has."""
    given = {"train_micro_batch_size_per_gpu": 4, "bf16": _BF16, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}
    _refused(zerobench.initialize(saved.Model(), given, lr_scheduler=_schedule)[0], folder, "has the lr_scheduler None")


def test_other_groups(folder: Path) -> None:
    """So is one whose parameters are in other groups."""
    torch.manual_seed(1)
    model = saved.Model()
    trained = [each for each in model.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained[::2]}, {"params": trained[1::2], "lr": 1.0}]
    given = {"train_micro_batch_size_per_gpu": 4, "bf16": _BF16}
    engine = zerobench.initialize(model, given, optimizer=torch.optim.AdamW(groups))[0]
    _refused(engine, folder, r"number of parameter groups 1 .* and 2|groups of \[4\] parameters, and .* \[2, 2\]")


@contextmanager
def _as_nobody(path: Path) -> Iterator[None]:
    """Inside, this process may not use a path, also if it belongs to root."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own they may not."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize("what", ["directory", "folder", "file", "inner folder", "inner file"])
def test_no_permission_to_read(what: str, folder: Path, public: Path) -> None:
    """A directory, folder or file without permission is one error with the system's reason."""
    engine, there = saved.engine(1), Path(shutil.copytree(folder, public / folder.name))
    files = sorted(path for path in there.rglob("*") if path.is_file())
    inner = next((path for path in files if path.parent.name.startswith("body")), files[-1])  # of a parameter
    closed = {"directory": public, "folder": there, "file": files[0], "inner folder": inner.parent, "inner file": inner}
    with _as_nobody(closed[what]):
        _refused(engine, there, r"\Acould not .*: Permission denied\Z")
        with pytest.raises(zerobench.CheckpointError, match=r"\Acould not .*: Permission denied\Z"):
            zerobench.verify_checkpoint(public, folder.name)


@pytest.mark.parametrize("name", ["saved", "of/this"])
def test_no_permission_to_write(name: str, public: Path) -> None:
    """Nor can a job save there."""
    engine = saved.engine(1)
    with _as_nobody(public), pytest.raises(zerobench.CheckpointError, match=r"\Acould not make .*Permission denied\Z"):
        engine.save_checkpoint(public / name)
    assert list(public.iterdir()) == []


@pytest.mark.parametrize("version", ["0.9.0", "1.2.3", "a fork"])
def test_other_versions_of_deepspeed(version: str, own: tuple[Path, dict[str, Any]], foreign: Path) -> None:
    """The number of DeepSpeed's version decides nothing: its layout has no version, and a file that has all the parts
    is read rightly. One that lacks a part is refused."""
    for path in sorted(foreign.rglob("*.pt")):
        content = pickles.read_any(path)
        if isinstance(content, dict) and "ds_version" in content:
            rewrite(path, {**content, "ds_version": version})
    loading = saved.engine(1)
    loading.load_checkpoint(foreign.parent, foreign.name)
    assert _states(loading) == own[1]


def _states(engine: zerobench.Engine) -> dict[str, Any]:
    return {name: value for name, value in saved.states(engine).items() if name != "other"}


@pytest.mark.parametrize("part", ["param_shapes", "buffer_names", "module", "dp_world_size", "global_steps"])
def test_a_model_without_a_part(part: str, foreign: Path) -> None:
    """A version whose model file lacks a part is one error."""
    for path in foreign.glob("*_model_states.pt"):
        content = pickles.read(path)
        del content[part]
        rewrite(path, content)
    _refused(saved.engine(1), foreign, "is no checkpoint of DeepSpeed's, or of a version that is not known: KeyError")


def test_extra_files(own: tuple[Path, dict[str, Any]], foreign: Path) -> None:
    """Files that no layout has are ignored."""
    torch.save({}, foreign / "other.pt")
    (foreign / "notes.txt").write_text("kept", encoding="utf-8")
    loading = saved.engine(1)
    loading.load_checkpoint(foreign.parent, foreign.name)
    assert _states(loading) == own[1]


@pytest.mark.parametrize("stage", [2, 3])
def test_without_states(stage: int, own: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Before the first update DeepSpeed's files have no optimizer states, which begin with zeros; after it, states that
    are missing are refused."""
    new, loading = saved.engine(0), saved.engine(1)
    new.save_checkpoint(tmp_path / "new")
    for directory in (tmp_path / "new", own[0]):
        folder = _exported(stage)(directory, tmp_path / "foreign" / directory.name).parent
        [tag] = (each for each in folder.iterdir() if each.is_dir())
        for path in tag.glob("*_optim_states.pt"):
            content = pickles.read(path)
            content["optimizer_state_dict"]["base_optimizer_state" if stage == 2 else "optimizer_state_dict"][
                "state"
            ] = {}
            rewrite(path, content)
        if directory == own[0]:
            _refused(loading, tag, "tensor 'exp_avg.body.0.weight' is missing")
        else:
            loading.load_checkpoint(folder)
            assert _states(loading) == _states(new)


def test_a_folder_elsewhere(folder: Path, tmp_path: Path) -> None:
    """A tag that is a symbolic link out of the directory is refused."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "linked").symlink_to(folder)
    _refused(saved.engine(1), tmp_path / "links" / "linked", "is a symbolic link out of the directory; load from ")
