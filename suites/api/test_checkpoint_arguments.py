"""Arguments of a save: each that cannot be is one error, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zerobench
from zerobench.suites.api import saved


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

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Nothing to set."""


def test_extra_states_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A save warns of a module whose extra state it leaves out, and of no other model."""
    caplog.set_level("WARNING")
    saved.engine().save_checkpoint(tmp_path / "other")
    assert not caplog.messages
    model = nn.Sequential(nn.Linear(2, 2), _Counting(2, 2))
    running, *_ = zerobench.initialize(model, {"train_batch_size": 1})
    running.save_checkpoint(tmp_path / "new")
    running.destroy()
    (message,) = caplog.messages
    assert "no extra state of modules, as of 1; save" in message


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
