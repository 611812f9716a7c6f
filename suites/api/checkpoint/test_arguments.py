"""Arguments of a save: each that cannot be is one error, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zerobench
from zerobench.suites.api.checkpoint import saved


def test_frozen_parameters_can_be_left_out(tmp_path: Path) -> None:
    """Then a load keeps the frozen values of the model."""
    first, other = saved.engine(0), saved.engine(1)
    kept = _values(other, "frozen.weight")
    first.save_checkpoint(tmp_path, exclude_frozen_parameters=True)
    other.load_checkpoint(tmp_path)
    assert _values(other, "frozen.weight") == kept
    assert _values(other, "body.0.weight") == _values(first, "body.0.weight")


def _values(of: zerobench.Engine, name: str) -> Any:
    return of.module.get_parameter(name).tolist()


def test_a_client_state_that_needs_pickle(tmp_path: Path) -> None:
    """One error, with the place of the value; nothing is written."""
    running = saved.engine()
    with pytest.raises(zerobench.CheckpointError, match=r"client_state\['a'\]\[1\] is a torch.*Linear, .*state_dict"):
        running.save_checkpoint(tmp_path / "new", client_state={"a": [1, torch.nn.Linear(1, 1)]})
    assert not (tmp_path / "new").exists()


class _Counting(nn.Linear):
    """Counts something, in the state dict but in no buffer."""

    def __init__(self, counted: Any = None) -> None:
        super().__init__(2, 2)
        self.counted = counted

    def get_extra_state(self) -> Any:
        return self.counted

    def set_extra_state(self, state: Any) -> None:
        self.counted = state


def _counting(counted: Any = None) -> tuple[zerobench.Engine, _Counting]:
    model = nn.Sequential(nn.Linear(2, 2), _Counting(counted))
    return zerobench.initialize(model, {"train_batch_size": 1})[0], model[1]  # type: ignore[return-value]


def test_extra_states(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A save has the extra state of a module, with its types, and a load gives it back."""
    caplog.set_level("WARNING")
    first, _ = _counting({"calls": 3, "seen": torch.tensor([1.5, 2.0]), 7: (None, b"x")})
    first.save_checkpoint(tmp_path)
    first.destroy()
    second, module = _counting()
    second.load_checkpoint(tmp_path)
    second.destroy()
    assert module.counted.pop("seen").tolist() == [1.5, 2.0]
    assert module.counted == {"calls": 3, 7: (None, b"x")}
    assert not caplog.messages


def test_extra_states_that_need_pickle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A save warns of a module whose extra state it leaves out; a load leaves that of the module."""
    caplog.set_level("WARNING")
    running, module = _counting(object())
    running.save_checkpoint(tmp_path)
    (message,) = caplog.messages
    assert "no extra state of 1: its extra state is a builtins.object, which" in message
    kept = module.counted = object()
    running.load_checkpoint(tmp_path)
    running.destroy()
    assert module.counted is kept


def test_a_layer_that_was_deleted(tmp_path: Path) -> None:
    """The engine still has its parameters: the error names one, in place of a lookup that fails."""
    model = saved.Model()
    engine = saved.engine(0, model)
    model.body[2] = nn.Identity()
    with pytest.raises(zerobench.CheckpointError, match=r"'body\.2\.weight', which the model does not have any more"):
        engine.save_checkpoint(tmp_path)


def test_within_a_step(tmp_path: Path) -> None:
    """A checkpoint holds no gradients, so it is not saved within a step."""
    running = saved.engine(gradient_accumulation_steps=2)
    saved.train(running)
    with pytest.raises(zerobench.CheckpointError, match="was called within a step"):
        running.save_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("directory", "message"), [("/proc/self/x", "No such file"), ("/dev/null", "Not a directory|F")]
)
def test_a_directory_that_cannot_be_written(directory: str, message: str) -> None:
    """One error with the system's reason."""
    with pytest.raises(zerobench.CheckpointError, match=f"could not make a folder in .*{message}"):
        saved.engine().save_checkpoint(directory)
