"""Reading: a checkpoint of DeepSpeed's as the source of a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.engine.checkpoint.deepspeed.opened import Opened
from zerobench.engine.checkpoint.deepspeed.trained import Pieces, Trained, narrow, of_whole
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import FROZEN, MASTER, Range
from zerobench.engine.checkpoint.plain import encode
from zerobench.engine.checkpoint.progress import (
    group_members,
    parameter_aliases,
    parameter_entries,
    precision,
    rule_name,
)
from zerobench.engine.checkpoint.record import (
    BufferEntry,
    Contents,
    GroupEntry,
    OptimizerEntry,
    ParameterEntry,
    ScalerEntry,
    ScheduleEntry,
)
from zerobench.engine.checkpoint.safetensors import dtype_name
from zerobench.engine.config.schema import DTYPES
from zerobench.engine.layout import row_major

#: The keys of a model's file that are DeepSpeed's own; all others are the client's.
_OWN = {
    *("module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params"),
    *("frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "skipped_steps", "global_steps"),
    *("global_samples", "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version"),
}
#: The rules of this engine by the names of their states.
_RULES = {("exp_avg", "exp_avg_sq"): "Adam", ("exp_avg",): "Lion", ("sum",): "Adagrad", ("momentum_buffer",): "Sgd"}


@dataclass(frozen=True)
class Values:
    """A tensor's values in row-major order."""

    pieces: Pieces

    @property
    def elements(self) -> int:
        """The number of elements."""
        return sum(each.numel() for each in self.pieces)

    @property
    def dtype(self) -> str:
        """The dtype, by the safetensors format's name."""
        return dtype_name(self.pieces[0].dtype, "a tensor")

    def read(self, start: int, stop: int, key: str, into: Tensor) -> None:
        """Copy the elements [start, stop)."""
        torch.cat(narrow(self.pieces, start, stop, key), out=into)


class DeepSpeedSource:
    """A checkpoint of DeepSpeed's, for one engine, whose groups give the names that stage 0 does not save.

    Raises:
        CheckpointError: a file is missing, damaged or would run code, or the layout is not DeepSpeed's.
    """

    def __init__(self, folder: Path, parts: Parts) -> None:
        self._parts = parts
        opened = Opened(folder, parts.ranks.rank, parts.ranks.world)
        self._models, self.world = opened.models, opened.world
        self.identity = ", ".join(f"{path.relative_to(folder)}: {path.stat().st_size}" for path in opened.files)
        with pickles.understood(folder):
            self._fill(opened)

    def _fill(self, opened: Opened) -> None:
        self._own = parameter_entries(self._parts)
        self._trained = opened.trained or self._of_stage_0()
        self.tensors: dict[str, Values] = {}
        self._add_initial_states()
        self._add_values()
        self.contents = self._contents(opened.optimizer)
        self.client_state = {key: value for key, value in self._model.items() if key not in _OWN}

    @property
    def _model(self) -> dict[str, Any]:
        return self._models[0]

    def _of_stage_0(self) -> Trained:
        return of_whole(self._model["optimizer"], self._model["module"], group_members(self._parts))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter, in the order of the module's state."""
        skipped = {
            *self._model["buffer_names"],
            *(self._model["shared_params"] or parameter_aliases(self._parts.module)),
        }
        frozen = self._model["frozen_param_shapes"] or {}
        return {
            name: tuple(self._trained.shapes.get(name, frozen.get(name, value.shape)))
            for name, value in self._model["module"].items()
            if name not in skipped
        }

    @property
    def _applied(self) -> int:
        """The number of updates."""
        return int(self._model["global_steps"] - self._model["skipped_steps"])

    def _add_initial_states(self) -> None:
        """Before the first update DeepSpeed has no states; every rule here begins with zeros."""
        if self._applied == 0:
            for name, shape in self._trained.shapes.items():
                zeros = torch.zeros(()).expand(torch.Size(shape).numel())
                for kind in self._parts.optimizer.state_names:
                    self._trained.values.setdefault(f"{kind}.{name}", [zeros])

    def _add_values(self) -> None:
        for key, pieces in self._trained.values.items():
            self._add(key, pieces)
        for name, shape in self._shapes().items():
            if name not in self._trained.shapes and torch.Size(shape).numel():
                self._add(f"{FROZEN}.{name}", narrow(self._frozen(name), 0, torch.Size(shape).numel(), name))
        for rank in range(self.world):
            module = self._models[rank % len(self._models)]["module"]
            for name in self._model["buffer_names"]:
                self._add(f"buffer.{rank}.{name}", [module[name].reshape(-1)])

    def _frozen(self, name: str) -> Pieces:
        """A frozen parameter: whole in the module, or at stage 3 a part on each rank."""
        if len(self._models) == 1 and self._model["module"][name].numel():
            return [self._model["module"][name].reshape(-1)]
        return [each["frozen_param_fragments"][name].reshape(-1) for each in self._models]

    def _add(self, key: str, pieces: Pieces) -> None:
        if any(each.numel() for each in pieces):
            self.tensors[key] = Values(pieces)

    def _contents(self, state: Mapping[str, Any]) -> Contents:
        shapes = self._shapes()
        own = self._own
        trained = {
            name: name in self._trained.shapes or (not torch.Size(shape).numel() and name in own and own[name].trained)
            for name, shape in shapes.items()
        }
        missing = {name: entry for name, entry in own.items() if name not in shapes and not entry.trained}
        excluded = bool(missing) and not any(not each for each in trained.values())
        entries = {
            name: ParameterEntry(shape=shape, stride=row_major(shape), trained=trained[name])
            for name, shape in shapes.items()
        }
        return Contents(
            world=self.world,
            dtype=self._dtype(shapes),
            parameters=entries | (missing if excluded else {}),
            tied={},
            buffers=self._buffers(),
            frozen=not excluded,
            optimizer=self._optimizer(),
            loss_scaler=self._scaler(state),
            lr_scheduler=self._schedule(),
            global_steps=self._model["global_steps"],
            skipped_steps=self._model["skipped_steps"],
            client_state={},
        )

    def _dtype(self, shapes: Mapping[str, Any]) -> Any:
        """The training dtype, that of the module's parameters."""
        found = {
            self._model["module"][name].dtype for name in shapes if self._model["module"][name].is_floating_point()
        }
        names = [name for name, dtype in DTYPES.items() if found == {dtype}]
        return names[0] if names else precision(self._parts)

    def _buffers(self) -> dict[str, BufferEntry]:
        module = self._model["module"]
        return {
            name: BufferEntry(shape=tuple(module[name].shape), dtype=str(module[name].dtype))
            for name in self._model["buffer_names"]
        }

    def _optimizer(self) -> OptimizerEntry:
        kinds = {key.split(".", 1)[0] for key in self._trained.values} - {MASTER}
        own = self._parts.optimizer
        states = tuple(sorted(kinds)) or own.state_names
        rule = _RULES.get(states, "of another kind") if kinds else rule_name(self._parts)
        return OptimizerEntry(
            rule=rule,
            states=states,
            groups=tuple(self._group(index, *each) for index, each in enumerate(self._trained.groups)),
            steps={name: self._trained.steps.get(name, self._applied) for name in self._trained.shapes},
        )

    def _group(self, index: int, names: list[str], options: Mapping[str, Any]) -> GroupEntry:
        """A group with the options that the engine has; parameters without elements are in none of DeepSpeed's."""
        groups = self._parts.optimizer.param_groups
        known = groups[index] if index < len(groups) else {}
        members = group_members(self._parts)[index] if index < len(groups) else ()
        empty = [name for name in members if not torch.Size(self._own[name].shape).numel() and name not in names]
        kept = {key: value for key, value in options.items() if key in known}
        return GroupEntry(parameters=(*names, *empty), options={key: encode(each, key) for key, each in kept.items()})

    def _scaler(self, state: Mapping[str, Any]) -> ScalerEntry:
        own = self._parts.scaler.state()
        kept = vars(state["loss_scaler"]) if "loss_scaler" in state else state
        return ScalerEntry(
            scale=float(kept.get("cur_scale", 1.0)),
            step=kept.get("cur_iter", self._model["global_steps"]),
            last_overflow=kept.get("last_overflow_iter", own["last_overflow"]),
            hysteresis=kept.get("cur_hysteresis", own["hysteresis"]),
        )

    def _schedule(self) -> ScheduleEntry | None:
        """The schedule's state; its class is not in the file."""
        state, own = self._model["lr_scheduler"], self._parts.lr_scheduler
        if state is None:
            return None
        kind = "of DeepSpeed's" if own is None else type(own).__name__
        return ScheduleEntry(type=kind, state=encode(state, "the schedule's state"))

    def read(self, memory: Mapping[Range, Tensor]) -> None:
        """Read the values of ranges into their memory."""
        for each, into in memory.items():
            self.tensors[each.key].read(each.offset, each.offset + each.length, each.key, into)
