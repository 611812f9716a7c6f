"""Arrangement: which unit's states an owner keeps where, by ``offload_optimizer`` and ``offload_param``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.config import Config
from engine.layout import Unit
from engine.offload.copies import Copies
from engine.offload.host import HostPlace
from engine.offload.shards import DeviceHome, HostHome
from engine.places import DevicePlace, Place
from engine.states import UnitState


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
        off = self._optimizer.device != "none"
        self._stepped_off = _first(trained, self._optimizer.ratio * sum(u.shard for u in trained)) if off else set()
        self._copies = Copies(device, self._optimizer.pin_memory)
        self._param_copies = Copies(device, self._param.pin_memory)
        self._host_shards: list[Tensor] = []
        self._on_device: Place = DevicePlace(zero.sub_group_size)
        self._off_device = self._on_device
        if off:
            largest = max((unit.shard for unit in trained), default=0)
            self._off_device = HostPlace(
                self._copies,
                _arriving(config, world, accumulation),
                sub_group=zero.sub_group_size,
                staging=min(zero.sub_group_size, largest),
                dtype=config.dtype,
            )

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
            state.home = HostHome(state, self._param_copies)
            self._host_shards.append(state.shard)
        else:
            state.home = DeviceHome(state, self._copies)

    def host(self) -> dict[str, list[Tensor]]:
        """The host memory in use, by what it is for: ``parameters``, ``gradients``, ``optimizer``, ``buffers``."""
        return {"parameters": self._host_shards, **self._off_device.host()}

    def files(self) -> dict[str, int]:
        """Bytes in files, by what they hold: ``parameters``, ``gradients``, ``optimizer``."""
        return self._off_device.files()


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
