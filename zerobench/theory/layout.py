"""The reference engine's layout in closed form: units, the shards that each rank owns, and the padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import nn

from zerobench.scenario import Scenario

_TOGETHER = {"cpu": 1 << 21, "cuda": 1 << 25}
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True)
class Unit:
    """Parameters that travel together, by name; lengths in elements.

    ``length`` is the sum of the parameters' lengths, each rounded up to whole chunks; ``shard``, which each rank owns,
    is ``length / world`` rounded up to whole chunks.
    """

    home: str  # the module that holds it
    members: tuple[str, ...]
    trainable: bool
    persistent: bool  # kept whole on every rank even at stage 3
    elements: int  # of its parameters
    length: int
    shard: int
    world: int
    chunk: int

    @property
    def padded(self) -> int:
        """Elements of all ranks' shards."""
        return self.shard * self.world

    def buckets(self, elements: int) -> int:
        """Collectives that carry the unit, if each may carry ``elements``: every rank's share is whole chunks."""
        width = max(1, elements // (self.world * self.chunk)) * self.chunk
        return -(-self.shard // width)


def units(scenario: Scenario, model: nn.Module) -> list[Unit]:
    """The model's units in order.

    A child of the outermost list, dict or sequence of modules is a block, and a unit; every other module makes a unit
    of the parameters it holds itself. Frozen parameters are in units of their own at stage 3, after the trainable ones
    of the same module; at other stages they are in none. At stage 3 trainable parameters of fewer elements than the
    persistence threshold are in one unit for the whole model, the last. At stages 0 to 2 neighbours share a unit, from
    the model's end on, if together they train at most a reduction bucket's elements, and at most 2**21 on a CPU and
    2**25 on a GPU.
    """
    parameters = dict(model.named_parameters())
    sharded = scenario.placement.parameters
    threshold = scenario.persistence if sharded else 0
    small = [name for name, p in parameters.items() if p.requires_grad and p.numel() < threshold]
    cut: list[Unit] = []
    for home, names in _homes(scenario, model):
        rest = [name for name in names if name not in small]
        kinds = (True, False) if sharded else (True,)
        for trainable in kinds:
            members = [name for name in rest if parameters[name].requires_grad == trainable]
            cut += _unit(scenario, home, {name: parameters[name] for name in members})
    return cut + list(_unit(scenario, "", {name: parameters[name] for name in small}, persistent=True))


def _homes(scenario: Scenario, model: nn.Module) -> list[tuple[str, list[str]]]:
    """The parameters' names by the home of their unit, in order."""
    parameters = dict(model.named_parameters())
    found = [(home, list(names)) for home, names in groupby(parameters, key=lambda name: _home(model, name))]
    if scenario.placement.parameters:
        return found
    room = together(scenario)
    for at in range(len(found) - 1, 0, -1):  # the model's end has the start of backward
        both = found[at - 1][1] + found[at][1]
        if sum(parameters[name].numel() for name in both if parameters[name].requires_grad) <= room:
            found[at - 1 : at + 1] = [(found[at - 1][0], both)]
    return found


def together(scenario: Scenario) -> int:
    """The limit of trained elements for neighbours that are reduced together."""
    return min(scenario.reduce_bucket, _TOGETHER[scenario.device])


def _home(model: nn.Module, name: str) -> str:
    """The block that a parameter is in, else the module that holds it."""
    path = name.split(".")[:-1]
    for depth in range(len(path)):
        if isinstance(model.get_submodule(".".join(path[:depth])), _CONTAINERS):
            return ".".join(path[: depth + 1])
    return ".".join(path)


def _unit(
    scenario: Scenario, home: str, members: dict[str, nn.Parameter], *, persistent: bool = False
) -> Iterator[Unit]:
    """The unit of these parameters, if there are any."""
    if members:
        world, chunk = scenario.world, scenario.chunk
        length = sum(_up(p.numel(), chunk) for p in members.values())
        trainable = next(iter(members.values())).requires_grad
        shard = _up(length, chunk * world) // world
        elements = sum(p.numel() for p in members.values())
        yield Unit(home, tuple(members), trainable, persistent, elements, length, shard, world, chunk)


def _up(number: int, grid: int) -> int:
    return -(-number // grid) * grid


def owned(of: Iterable[Unit]) -> int:
    """Elements of these units that each rank owns, padding included."""
    return sum(unit.shard for unit in of)


def whole(of: Iterable[Unit]) -> int:
    """Elements of these units on a rank that keeps them whole, padding included."""
    return sum(unit.padded for unit in of)
