"""Writing: a checkpoint of our own in DeepSpeed's layout, in one process, which holds one file in memory at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.engine.checkpoint.deepspeed.files import model_name, optimizer_name
from zerobench.engine.checkpoint.deepspeed.partitions import Partitions
from zerobench.engine.checkpoint.deepspeed.pickles import DynamicScaler, StaticScaler
from zerobench.engine.checkpoint.deepspeed.settings import Settings
from zerobench.engine.checkpoint.directory import failed
from zerobench.engine.checkpoint.pieces import FROZEN
from zerobench.engine.checkpoint.plain import decode
from zerobench.engine.checkpoint.record import Contents
from zerobench.engine.checkpoint.values import StoredValues, find_checkpoint, open_record
from zerobench.engine.config.schema import DTYPES
from zerobench.engine.errors import CheckpointError
from zerobench.engine.layout import row_major

#: The version of DeepSpeed whose layout is written.
VERSION = "0.19.8"


def export_deepspeed_checkpoint(
    load_dir: str | PathLike[str],
    save_dir: str | PathLike[str],
    config: Mapping[str, Any],
    world: int,
    tag: str | None = None,
) -> None:
    """Write a checkpoint in DeepSpeed's layout to ``save_dir/tag``, and make it DeepSpeed's ``latest``.

    DeepSpeed goes on from it with ``engine.load_checkpoint(save_dir)`` on as many ranks. Random number generators are
    not in its layout. The folder appears when it is complete.

    Args:
        load_dir: the directory of the checkpoints.
        save_dir: a directory for DeepSpeed; made if it does not exist.
        config: the configuration of DeepSpeed's job; the layout depends on its stage, its precision, the size of its
            sub-groups and its loss scale.
        world: the number of DeepSpeed's ranks.
        tag: by default the one that ``latest`` names.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, DeepSpeed's layout cannot hold it, or it cannot be
            written.
    """
    folder = find_checkpoint(Path(load_dir), tag)
    record = open_record(folder)
    export = _Export(Partitions(StoredValues(folder, record), Settings.of(dict(config), world)))
    export.check()
    unfinished = names.begin(Path(save_dir), record.tag)
    try:
        export.write(unfinished)
    except BaseException:
        names.discard(unfinished)
        raise
    names.publish(unfinished, record.tag)
    names.write_plain_latest(Path(save_dir), record.tag)


@dataclass(frozen=True)
class _Export:
    """One checkpoint on its way out."""

    partitions: Partitions

    @property
    def _contents(self) -> Contents:
        return self.partitions.values.record.contents

    @property
    def _settings(self) -> Settings:
        return self.partitions.settings

    def check(self) -> None:
        """Check that DeepSpeed's layout can hold the checkpoint.

        Raises:
            CheckpointError: it cannot.
        """
        given = "fp16" if self._settings.fp16.enabled else "bf16" if self._settings.bf16 else "fp32"
        if given != self._contents.dtype:
            raise CheckpointError(
                f"the checkpoint was trained in {self._contents.dtype}, and the configuration says {given}"
            )
        for name, entry in self._contents.parameters.items():
            if entry.stride != row_major(entry.shape):
                raise CheckpointError(f"parameter {name!r} is not contiguous, and DeepSpeed trains no such parameter")
        if not self._contents.frozen:
            raise CheckpointError(
                "the checkpoint has no frozen parameters, and DeepSpeed does not load it without them"
            )

    def write(self, folder: Path) -> None:
        """Write all files."""
        stage, bf16 = self._settings.stage, self._settings.bf16
        for rank in range(self._settings.world if stage == 3 else 1):
            _write(folder / model_name(rank, stage), self._model(rank))
        for rank in range(self._settings.world if stage else 0):
            state = {"optimizer_state_dict": self._optimizer(rank), "ds_config": self._settings.config}
            _write(folder / optimizer_name(rank, bf16=bf16), {**state, "ds_version": VERSION})
        with failed(f"write to {str(folder)!r}"):
            names.flush(folder)

    def _optimizer(self, rank: int) -> dict[str, Any]:
        stage = self._settings.stage
        own = self.partitions.by_parameter(rank) if stage == 3 else self.partitions.flat(rank)
        return {
            "loss_scaler": self._scaler(),
            "dynamic_loss_scale": self._dynamic,
            "overflow": False,
            "clip_grad": self._settings.clip,
            "zero_stage": stage,
            "ds_version": VERSION,
            **own,
        }

    @property
    def _dynamic(self) -> bool:
        return self._settings.fp16.enabled and not self._settings.fp16.loss_scale

    def _scaler(self) -> StaticScaler | DynamicScaler:
        saved, fp16 = self._contents.loss_scaler, self._settings.fp16
        if not self._dynamic:
            return StaticScaler(cur_scale=fp16.loss_scale if fp16.enabled else 1.0, dynamic=False)
        return DynamicScaler(
            cur_scale=saved.scale,
            dynamic=True,
            cur_iter=saved.step,
            last_overflow_iter=saved.last_overflow,
            scale_factor=2.0,
            scale_window=fp16.loss_scale_window,
            min_scale=fp16.min_loss_scale,
            delayed_shift=fp16.hysteresis,
            cur_hysteresis=saved.hysteresis,
            consecutive_hysteresis=fp16.consecutive_hysteresis,
            raise_error_at_min_scale=True,
            dtype=torch.float16,
        )

    def _model(self, rank: int) -> dict[str, Any]:
        saved, stage = self._contents, self._settings.stage
        schedule = saved.lr_scheduler
        shapes = self._shapes() if stage else None
        unowned = self._unowned() if stage >= 2 else None
        own: dict[str, Any] = {
            "module": self._module(rank),
            "buffer_names": list(saved.buffers),
            "optimizer": None if stage else self._whole_optimizer(),
            "param_shapes": shapes,
            "frozen_param_shapes": unowned,
            "shared_params": self._shared() if stage else None,
            "frozen_param_fragments": None if unowned is None else self._fragments(unowned, rank),
            "lr_scheduler": None if schedule is None else decode(schedule.state),
            "data_sampler": None,
            "random_ltd": None,
            "skipped_steps": saved.skipped_steps,
            "global_steps": saved.global_steps,
            "dp_world_size": self._settings.world,
            "mp_world_size": 1,
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
            "ds_config": self._settings.config,
            "ds_version": VERSION,
        }
        return {**own, **decode(saved.client_state)}

    def _shapes(self) -> list[OrderedDict[str, torch.Size]]:
        """The shapes of each flat group's parameters, in order."""
        groups = self.partitions.groups
        if self._settings.stage == 3:
            groups = [names for subs in self.partitions.sub_groups() for names in subs]
        shapes = {name: torch.Size(entry.shape) for name, entry in self._contents.parameters.items()}
        return [OrderedDict((name, shapes[name]) for name in group) for group in groups]

    def _unowned(self) -> OrderedDict[str, torch.Size]:
        """The shapes of the parameters that are in no flat group: frozen, or without elements."""
        entries = self._contents.parameters.items()
        return OrderedDict(
            (name, torch.Size(entry.shape))
            for name, entry in entries
            if not entry.trained or not self.partitions.elements(name)
        )

    def _fragments(self, unowned: Mapping[str, torch.Size], rank: int) -> OrderedDict[str, Tensor]:
        whole = self._settings.stage < 3
        return OrderedDict(
            (name, self._value(name) if whole or not shape.numel() else self.partitions.of_rank(FROZEN, name, rank))
            for name, shape in unowned.items()
        )

    def _value(self, name: str) -> Tensor:
        """A whole parameter as the module has it: a trained one is the master, rounded."""
        entry = self._contents.parameters[name]
        if not self.partitions.elements(name):
            return torch.empty(entry.shape, dtype=DTYPES[self._contents.dtype])
        value = self.partitions.values.whole_parameter(name)
        return value.to(DTYPES[self._contents.dtype]) if entry.trained else value

    def _module(self, rank: int) -> OrderedDict[str, Tensor]:
        """The module's state; at stage 3 parameters are empty."""
        partitioned = torch.empty(0, dtype=DTYPES[self._contents.dtype])
        found: OrderedDict[str, Tensor] = OrderedDict()
        for name in self._contents.parameters:
            found[name] = partitioned if self._settings.stage == 3 else self._value(name)
        for name, entry in self._contents.buffers.items():
            key = f"buffer.{rank % self._contents.world}.{name}"
            elements = torch.Size(entry.shape).numel()
            flat = self.partitions.values.read(key, 0, elements) if elements else torch.empty(0)
            found[name] = flat.view(entry.shape)
        return found | {alias: found[name] for alias, name in self._contents.tied.items()}

    def _shared(self) -> dict[str, str]:
        """The other names of tied parameters."""
        return {alias: name for alias, name in self._contents.tied.items() if name in self._contents.parameters}

    def _whole_optimizer(self) -> dict[str, Any]:
        """The optimizer's state of stage 0: torch's own in fp32, and DeepSpeed's unfused one in 16 bits."""
        state, masters = self.partitions.whole()
        if self._contents.dtype == "fp32":
            return state
        saved = self._contents.loss_scaler
        found = {"dynamic_loss_scale": self._dynamic, "cur_scale": saved.scale, "cur_iter": saved.step}
        if self._dynamic:
            window = self._settings.fp16.loss_scale_window
            found |= {"last_overflow_iter": saved.last_overflow, "scale_factor": 2.0, "scale_window": window}
        return found | {"optimizer_state_dict": state, "fp32_groups": masters}


def _write(path: Path, content: dict[str, Any]) -> None:
    with failed(f"write {path.name!r} in {str(path.parent)!r}"), path.open("xb") as file:
        pickles.write(file, content)
        file.flush()
        os.fsync(file.fileno())
