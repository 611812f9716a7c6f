"""Universal checkpoints: DeepSpeed's ``ds_to_universal`` gives each parameter a folder, with a file for each state.

``zero/NAME/fp32.pt`` is the master, ``zero/NAME/exp_avg.pt`` a state, ``zero/NAME/step.pt`` the step count at stages 1
and 2, and ``zero/optimizer_state.pt`` has everything else of the optimizer, as rank 0 saved it. The model's files are
copies of those that were converted, so they have the frozen parameters and the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.engine.checkpoint.deepspeed.files import UNIVERSAL
from zerobench.engine.checkpoint.deepspeed.trained import Pieces, Shapes, Trained, step_of
from zerobench.engine.checkpoint.directory import failed
from zerobench.engine.checkpoint.pieces import MASTER
from zerobench.engine.errors import CheckpointError
from zerobench.engine.rules.client import options_of

_MASTER, _STEP, _SUFFIX = "fp32", "step", ".pt"


def check_order(folder: Path, model: dict[str, Any]) -> None:
    """Check that each folder has the states of its own parameter.

    Raises:
        CheckpointError: the job's configuration has made DeepSpeed mix them up.
    """
    zero = (model.get("ds_config") or {}).get("zero_optimization", {})
    if zero.get("round_robin_gradients") and zero.get("stage") in (1, 2) and model["dp_world_size"] > 1:
        raise CheckpointError(
            f"{str(folder)!r} was trained with round_robin_gradients on {model['dp_world_size']} ranks, and then "
            "DeepSpeed's conversion gives parameters the states of others; load the checkpoint that was converted"
        )


def common_file(folder: Path) -> Path:
    """The file of everything but the parameters' states."""
    return folder / UNIVERSAL / f"optimizer_state{_SUFFIX}"


def state_files(folder: Path, shapes: Sequence[Shapes]) -> dict[str, list[Path]]:
    """The files of each trained parameter, its master's among them, whether it is there or not.

    Raises:
        CheckpointError: a folder is missing or lies elsewhere.
    """
    return {name: _of_parameter(folder, name) for members in shapes for name in members}


def _of_parameter(folder: Path, name: str) -> list[Path]:
    inside = folder / UNIVERSAL / name
    if inside.resolve() != folder.resolve() / UNIVERSAL / name or Path(name).name != name:
        raise CheckpointError(
            f"the states of parameter {name!r} lie outside {str(folder)!r}, behind a symbolic link or by their name; "
            "convert the checkpoint again"
        )
    with failed(f"open the folder of parameter {name!r} in {str(folder)!r}"):
        there = inside.is_dir()
        found = {path for path in inside.iterdir() if path.suffix == _SUFFIX} if there else set()
    if not there:
        raise CheckpointError(
            f"{str(folder)!r} has no folder {UNIVERSAL!r} with a folder of parameter {name!r} in it; "
            "convert the checkpoint again, or load a whole copy"
        )
    return sorted({inside / f"{_MASTER}{_SUFFIX}", *found})


def of_universal(files: dict[str, list[Path]], shapes: Sequence[Shapes], common: dict[str, Any]) -> Trained:
    """The trained parameters, from their files, the shapes of each flat group's and the content of :func:`common_file`.

    Raises:
        CheckpointError: a file is damaged, would run code, or has another number of elements than its parameter.
    """
    found = Trained()
    of_stage_3 = common.get("optimizer_state_dict", {"state": {}})["state"]
    for options in common["param_groups"]:
        names: list[str] = []
        for index in options["params"]:
            for name, shape in shapes[index].items():
                content = {path.stem: pickles.read_any(path) for path in files[name]}
                step = step_of(content if _STEP in content else of_stage_3.get(index, {}), options)
                found.add(name, shape, _values(content, name, torch.Size(shape).numel()), step)
            names += shapes[index]
        found.groups.append((names, options_of(options)))
    return found


def _values(content: dict[str, Any], name: str, elements: int) -> dict[str, Pieces]:
    """A parameter's values by kind."""
    states = {kind: value for kind, value in content.items() if kind != _STEP}
    return {MASTER if kind == _MASTER else kind: [_flat(value, kind, name, elements)] for kind, value in states.items()}


def _flat(value: Any, kind: str, name: str, elements: int) -> Tensor:
    """The tensor of a file: in a dict at stages 1 and 2, and bare at stage 3."""
    tensor: Tensor = value["param"] if isinstance(value, dict) else value
    if tensor.numel() != elements:
        raise CheckpointError(
            f"{kind + _SUFFIX!r} of parameter {name!r} has {tensor.numel()} elements, and the parameter has "
            f"{elements}; the checkpoint is damaged, or was trained with tensor parallelism or experts"
        )
    return tensor.detach().reshape(-1)
