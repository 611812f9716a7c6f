"""Arrangement: which unit's states an owner keeps where, by ``offload_optimizer`` and ``offload_param``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from zerobench.engine.config.schema import Config
from zerobench.engine.layout import Unit
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.files import NvmePlace
from zerobench.engine.state.host import HostPlace, Offloaded
from zerobench.engine.state.scratch import ScratchFile
from zerobench.engine.state.shard_files import FileHome, ShardFiles
from zerobench.engine.state.shards import DeviceHome, HostHome
from zerobench.engine.state.stores import DevicePlace, Home, Place
from zerobench.engine.state.unit import UnitState


class Arrangement:
    """Gives each unit its place and its home.

    Args:
        config: the engine's.
        units: all units of the model.
        device: where it trains.
        world: ranks.
        accumulation: micro-steps in a step.
        names: of the states that the optimizer keeps for each element.
    """

    def __init__(
        self,
        config: Config,
        units: Sequence[Unit],
        device: torch.device,
        *,
        world: int,
        accumulation: int,
        names: Sequence[str],
    ) -> None:
        zero = config.zero_optimization
        self.names = names
        self._optimizer, self._param = zero.offload_optimizer, zero.offload_param
        trained = [unit for unit in units if unit.trainable]
        share = self._optimizer.ratio * sum(unit.shard for unit in trained)
        self._stepped_off = _first(trained, share) if self._optimizer.device != "none" else set()
        self._copies = Copies(device, self._optimizer.pin_memory)
        self._param_copies = Copies(device, self._param.pin_memory)
        self._host_shards: list[Tensor] = []
        self._files: list[ScratchFile] = []
        self._on_device: Place = DevicePlace(zero.sub_group_size)
        self._off_device: Place = self._on_device
        stepped = [unit for unit in trained if self.steps_off_device(unit)]
        if stepped:
            self._off_device = self._offloaded(config, stepped, _arriving(config, world, accumulation))
        self._in_memory: set[int] = set()
        kept_off = [unit for unit in units if self.keeps_off_device(unit)]
        self._shard_files = self._shards(kept_off, config.dtype.itemsize) if kept_off else None

    def _offloaded(self, config: Config, units: Sequence[Unit], arriving: torch.dtype) -> Offloaded:
        section, sub_group = self._optimizer, config.zero_optimization.sub_group_size
        if section.nvme_path is None or section.device == "cpu":
            staging = min(sub_group, max(unit.shard for unit in units))
            return HostPlace(self._copies, arriving, sub_group=sub_group, staging=staging, dtype=config.dtype)
        return NvmePlace(
            self._copies,
            arriving,
            self._scratch(section.nvme_path),
            units,
            dtype=config.dtype,
            states=1 + len(self.names),
            sub_group=sub_group,
            budget=section.buffer_count * section.buffer_size * 4,
            read_ahead=section.pipeline_read,
            write_behind=section.pipeline_write,
        )

    def _shards(self, units: Sequence[Unit], itemsize: int) -> ShardFiles | None:
        """The file of the shards that go to one; ``units`` are all that leave the device."""
        section = self._param
        if section.nvme_path is None or section.device == "cpu":
            return None
        self._in_memory = _first(units, section.max_in_cpu)
        largest = max((unit.shard for unit in units if unit.index not in self._in_memory), default=0)
        return ShardFiles(
            self._scratch(section.nvme_path),
            self._param_copies,
            count=section.buffer_count,
            size=section.buffer_size * itemsize,
            largest=largest * itemsize,
        )

    def _scratch(self, directory: Path) -> ScratchFile:
        self._files.append(ScratchFile(directory))
        return self._files[-1]

    def steps_off_device(self, unit: Unit) -> bool:
        """Whether the unit's gradient sum, master and optimizer states are kept off the device."""
        return unit.index in self._stepped_off

    def keeps_off_device(self, unit: Unit) -> bool:
        """Whether this rank's shard of the unit's parameters is kept off the device."""
        return self._param.device != "none" and not unit.persistent

    def adopt(self, state: UnitState) -> None:
        """Give a new unit its place and its home, which take over its states."""
        state.place = self._off_device if self.steps_off_device(state.unit) else self._on_device
        if state.unit.trainable:
            state.place.adopt(state, self.names)
        if self.keeps_off_device(state.unit):
            state.home = self._home(state)
        else:
            state.home = DeviceHome(state, self._copies)

    def _home(self, state: UnitState) -> Home:
        if self._shard_files is not None and state.unit.index not in self._in_memory:
            return FileHome(state, self._shard_files)
        home = HostHome(state, self._param_copies)
        self._host_shards.append(state.shard)
        return home

    def settle(self) -> None:
        """Return when everything is written that was to be written.

        Raises:
            OffloadError: something was not.
        """
        for file in self._files:
            file.settle()

    def host(self) -> dict[str, list[Tensor]]:
        """The host memory in use, by what it is for: ``parameters``, ``gradients``, ``optimizer``, ``buffers``."""
        host = self._off_device.host()
        if self._shard_files is not None:
            host["buffers"] = host.get("buffers", []) + [buffer.memory for buffer in self._shard_files.buffers]
        return {"parameters": self._host_shards, **host}

    def files(self) -> dict[str, int]:
        """Bytes in files, by what they hold: ``parameters``, ``gradients``, ``optimizer``."""
        parameters = self._shard_files.file.size if self._shard_files is not None else 0
        return {"parameters": parameters, **self._off_device.files()}

    def close(self) -> None:
        """Give the files back."""
        for file in self._files:
            file.close()


def _first(units: Iterable[Unit], elements: float) -> set[int]:
    """The units from the first on whose shards together have at most so many elements, by index."""
    chosen, total = set(), 0
    for unit in units:
        total += unit.shard
        if total > elements:
            break
        chosen.add(unit.index)
    return chosen


def _arriving(config: Config, world: int, accumulation: int) -> torch.dtype:
    """The narrowest dtype that holds every final sum exactly: a sum of one contribution needs no more than that had."""
    contributions = world * (accumulation if config.zero_optimization.reduces_every_micro_step else 1)
    wire, accumulator = config.communication_dtype, config.accumulator_dtype
    return wire if contributions == 1 and wire.itemsize < accumulator.itemsize else accumulator
