"""The whole weights of a checkpoint of DeepSpeed's, and its numbers, without an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.engine.checkpoint.deepspeed.opened import Opened
from zerobench.engine.checkpoint.deepspeed.trained import Pieces, Trained, narrow, of_whole
from zerobench.engine.checkpoint.pieces import MASTER
from zerobench.engine.errors import CheckpointError


class DeepSpeedWeights:
    """A checkpoint of DeepSpeed's in one process; tensors are maps of its files.

    Raises:
        CheckpointError: a file is missing, damaged or would run code, or the layout is not DeepSpeed's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, opened = folder, Opened(folder)
        self._files, self._models = opened.files, opened.models
        with pickles.understood(folder):
            self._trained = opened.trained or self._of_stage_0()
            self.tied: dict[str, str] = dict(self._model["shared_params"] or {})
            skipped = {*self._model["buffer_names"], *self.tied}
            self.whole = {name: self._whole(name) for name in self._model["module"] if name not in skipped}
            self.buffers: dict[str, Tensor] = {
                name: self._model["module"][name] for name in self._model["buffer_names"]
            }

    @property
    def trained(self) -> Collection[str]:
        """The names of the parameters that have an fp32 master."""
        return self._trained.shapes

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file."""
        return {str(path.relative_to(self._folder)): path.stat().st_size for path in self._files}

    @property
    def _model(self) -> dict[str, Any]:
        return self._models[0]

    def _of_stage_0(self) -> Trained:
        """Of stage 0, whose groups have no names: in fp32 the module has the weights; in 16 bits, if there is one group
        of all parameters, it is in their order."""
        optimizer, module = self._model["optimizer"], self._model["module"]
        if optimizer is None or "optimizer_state_dict" not in optimizer:
            return Trained()
        names = [name for name in module if name not in self._model["buffer_names"]]
        groups = optimizer.get("fp32_groups", optimizer.get("fp32_groups_flat"))
        if len(groups) == 1 and [each.shape for each in groups[0]] == [module[name].shape for name in names]:
            return of_whole(optimizer, module, [names])
        raise CheckpointError(
            "a checkpoint of DeepSpeed's stage 0 in 16 bits does not name the parameters of its fp32 groups; load it "
            "into an engine with the same groups, and save it"
        )

    def _whole(self, name: str) -> tuple[tuple[int, ...], Pieces]:
        """A parameter's shape and values: the fp32 master if it has one, or else as the model has it."""
        if name in self._trained.shapes:
            return self._trained.shapes[name], self._trained.values[f"{MASTER}.{name}"]
        value = self._model["module"][name]
        frozen: Mapping[str, torch.Size] = self._model["frozen_param_shapes"] or {}
        shape = tuple(frozen.get(name, value.shape))
        elements = torch.Size(shape).numel()
        parts = (
            [value] if value.numel() == elements else [each["frozen_param_fragments"][name] for each in self._models]
        )
        return shape, narrow([each.reshape(-1) for each in parts], 0, elements, name)

    def describe(self) -> dict[str, Any]:
        """The checkpoint in numbers, as describe_checkpoint has them."""
        kinds: dict[str, int] = {}
        for key, pieces in self._trained.values.items():
            kind = key.split(".", 1)[0]
            kinds[kind] = kinds.get(kind, 0) + sum(each.nbytes for each in pieces)
        dtypes = {value.dtype for name, value in self._model["module"].items() if name in self.whole}
        return {
            "written_by": f"DeepSpeed {self._model['ds_version']}",
            "world": self._model["dp_world_size"],
            "dtype": ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)),
            "global_steps": self._model["global_steps"],
            "skipped_steps": self._model["skipped_steps"],
            "parameters": sum(torch.Size(shape).numel() for shape, _ in self.whole.values()),
            "optimizer": ", ".join(sorted(kinds.keys() - {MASTER})) or "without states",
            "lr_scheduler": None if self._model["lr_scheduler"] is None else "of a class that DeepSpeed does not save",
            "bytes": kinds,
            "header_bytes": 0,
            "files": self.sizes,
        }
