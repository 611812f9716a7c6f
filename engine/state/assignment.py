"""StoreAssignment: the stores of each unit, chosen by ``offload_optimizer`` and ``offload_param``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.wire import WireFormat
from zerobench.engine.config.schema import Config
from zerobench.engine.layout import Unit
from zerobench.engine.placement import Placement
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.device import DeviceOptimizerStore, DeviceParameterStore
from zerobench.engine.state.files import FileOptimizerStore
from zerobench.engine.state.files_parameters import FileParameterStore, ShardFiles
from zerobench.engine.state.host import HostOptimizerStore, HostParameterStore
from zerobench.engine.state.partitioned import take_values
from zerobench.engine.state.portion import Portion
from zerobench.engine.state.scratch import ScratchFile
from zerobench.engine.state.stores import OptimizerStore, ParameterStore
from zerobench.engine.state.unit import UnitState


class StoreAssignment:
    """Builds each unit's state with its two stores.

    Args:
        config: the engine's configuration.
        units: all units of the model.
        ranks: all ranks that share the states.
        placement: the states that only owners keep.
        wire: the format in which gradients travel.
        device: the device that the engine trains on.
        several: a step may have more than one micro-step.
        names: the states that the optimizer keeps for each element.
    """

    def __init__(
        self,
        config: Config,
        units: Sequence[Unit],
        ranks: Ranks,
        placement: Placement,
        wire: WireFormat,
        device: torch.device,
        *,
        several: bool,
        names: Sequence[str],
    ) -> None:
        zero = config.zero_optimization
        self._config, self._ranks, self._placement, self._device = config, ranks, placement, device
        self._several, self._names = several, names
        self._optimizer, self._param = zero.offload_optimizer, zero.offload_param
        trained = [unit for unit in units if unit.trainable]
        share = self._optimizer.ratio * sum(unit.shard for unit in trained)
        self._stepped_off = _first(trained, share) if self._optimizer.device != "none" else set()
        self._copies = Copies(device, self._optimizer.pin_memory)
        self._param_copies = Copies(device, self._param.pin_memory)
        self._off_device_shards: list[ParameterStore] = []
        self._files: list[ScratchFile] = []
        self._on_device: OptimizerStore = DeviceOptimizerStore(names, zero.sub_group_size)
        self._off_device: OptimizerStore = self._on_device
        stepped = [unit for unit in trained if self.steps_off_device(unit)]
        if stepped:
            self._off_device = self._offloaded(stepped, self._arriving(wire))
        self._in_memory: set[int] = set()
        kept_off = [unit for unit in units if self.keeps_off_device(unit)]
        self._shard_files = self._shards(kept_off) if kept_off else None

    def _offloaded(self, units: Sequence[Unit], arriving: torch.dtype) -> OptimizerStore:
        section, config = self._optimizer, self._config
        sub_group = config.zero_optimization.sub_group_size
        if section.nvme_path is None or section.device == "cpu":
            staging = min(sub_group, max(unit.shard for unit in units))
            return HostOptimizerStore(
                self._names, self._copies, arriving, sub_group=sub_group, staging=staging, dtype=config.dtype
            )
        return FileOptimizerStore(
            self._names,
            self._copies,
            arriving,
            self._scratch(section.nvme_path),
            units,
            dtype=config.dtype,
            sub_group=sub_group,
            budget=section.buffer_count * section.buffer_size * 4,
            read_ahead=section.pipeline_read,
            write_behind=section.pipeline_write,
        )

    def _arriving(self, wire: WireFormat) -> torch.dtype:
        """The narrowest dtype in which every final sum is exact: the wire dtype if there is one contribution."""
        every_micro_step = self._config.zero_optimization.reduces_every_micro_step
        accumulator = self._config.accumulator_dtype
        one_contribution = self._ranks.world == 1 and not (self._several and every_micro_step)
        narrower = wire.decoded.itemsize < accumulator.itemsize
        return wire.decoded if one_contribution and narrower else accumulator

    def _shards(self, units: Sequence[Unit]) -> ShardFiles | None:
        """The file of the shards kept in one; ``units`` are all units kept off the device."""
        section, itemsize = self._param, self._config.dtype.itemsize
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
        self._files.append(ScratchFile(directory, self._device))
        return self._files[-1]

    @property
    def steps_on_host(self) -> bool:
        """Whether the CPU updates at least one unit."""
        return self._off_device is not self._on_device

    def steps_off_device(self, unit: Unit) -> bool:
        """Whether the unit's gradient sum, master and optimizer states are kept off the device."""
        return unit.index in self._stepped_off

    def keeps_off_device(self, unit: Unit) -> bool:
        """Whether this rank's shard of the unit's parameters is kept off the device."""
        return self._param.device != "none" and not unit.persistent

    def build(self, unit: Unit) -> UnitState:
        """Take over a unit's parameters, with rank 0's values, and give its states to their stores. A collective."""
        portion = self._portion(unit)
        full, shard, master = self._initial(portion)
        parameters = self._parameter_store(portion, full, shard)
        gradient = self._accumulator(portion)
        store = self._off_device if self.steps_off_device(unit) else self._on_device
        state = UnitState(portion, full, gradient, store, parameters)
        del full, shard  # frees memory that no store keeps, before creating optimizer states
        if unit.trainable:
            store.adopt(portion, parameters, master, gradient)
        return state

    def _portion(self, unit: Unit) -> Portion:
        own = slice(self._ranks.rank * unit.shard, (self._ranks.rank + 1) * unit.shard)
        dtype, off = self._config.dtype, self.steps_off_device(unit) or self.keeps_off_device(unit)
        return Portion(
            unit,
            own=own,
            extent=own if self._placement.optimizer else slice(0, unit.padded),
            sharded=self._placement.parameters and not unit.persistent,
            has_master_copy=off or dtype != torch.float32,
            dtype=dtype,
            device=self._device,
        )

    def _initial(self, portion: Portion) -> tuple[Tensor, Tensor, Tensor]:
        """The whole unit, this rank's shard of it, and the master over the extent. A collective."""
        unit = portion.unit
        source = torch.zeros(unit.padded, dtype=torch.float32, device=self._device)
        for slot in unit.slots:
            if not take_values(slot, source):
                slot.view(source).copy_(slot.parameter.detach())
        self._ranks.broadcast(source)
        full = source if portion.dtype == torch.float32 else source.to(portion.dtype)
        shard = full[portion.own].clone() if portion.sharded else full[portion.own]
        if unit.trainable and portion.has_master_copy:
            return full, shard, source[portion.extent].clone()
        return full, shard, shard if portion.extent == portion.own else full

    def _accumulator(self, portion: Portion) -> Tensor:
        """The gradient's memory between micro-steps, on the device: for the whole unit, the shard, or empty."""
        unit = portion.unit
        if not unit.trainable:
            kept = 0
        elif not self._placement.gradients:
            kept = unit.padded
        else:
            kept = unit.shard if self._several or not self.steps_off_device(unit) else 0
        return torch.zeros(kept, dtype=self._config.accumulator_dtype, device=self._device)

    def _parameter_store(self, portion: Portion, full: Tensor, shard: Tensor) -> ParameterStore:
        if not self.keeps_off_device(portion.unit):
            return DeviceParameterStore(shard, shard if portion.extent == portion.own else full, self._copies)
        if self._shard_files is not None and portion.unit.index not in self._in_memory:
            return FileParameterStore(portion, shard, self._shard_files)
        self._off_device_shards.append(HostParameterStore(portion, shard, self._param_copies))
        return self._off_device_shards[-1]

    @property
    def keeps_sums(self) -> bool:
        """Whether sums of gradients are kept between micro-steps; if not, they go off the device at once."""
        return self._several or not self._stepped_off

    def check_kept(self, last: bool) -> None:
        """Refuse a micro-step that is not the last one, if no sum of gradients is kept between micro-steps.

        Raises:
            RuntimeError: gradients go off the device at once, because a step has one micro-step.
        """
        if not last and not self.keeps_sums:
            raise RuntimeError(
                "gradient_accumulation_steps is 1, so offload_optimizer keeps no sum of gradients between micro-steps; "
                "set gradient_accumulation_steps to the number of backwards, or managed_gradient_accumulation to false"
            )

    def settle(self) -> None:
        """Wait until all writes to files are over.

        Raises:
            OffloadError: a write failed.
        """
        for file in self._files:
            file.settle()

    def host(self) -> dict[str, list[Tensor]]:
        """The host memory in use, by purpose: ``parameters``, ``gradients``, ``optimizer``, ``buffers``."""
        host = self._off_device.host()
        if self._shard_files is not None:
            host["buffers"] = host.get("buffers", []) + [buffer.memory for buffer in self._shard_files.buffers]
        shards = [shard for store in self._off_device_shards if (shard := store.memory()) is not None]
        return {"parameters": shards, **host}

    def files(self) -> dict[str, int]:
        """Bytes in files, by content: ``parameters``, ``gradients``, ``optimizer``."""
        parameters = self._shard_files.file.size if self._shard_files is not None else 0
        return {"parameters": parameters, **self._off_device.files()}

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _first(units: Iterable[Unit], elements: float) -> set[int]:
    """The indices of the first units; their shards together have at most ``elements`` elements."""
    chosen, total = set(), 0
    for unit in units:
        total += unit.shard
        if total > elements:
            break
        chosen.add(unit.index)
    return chosen
