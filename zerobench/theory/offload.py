"""Bytes that the reference engine keeps off the device, and that a step moves between device, host and files.

Everything is integer arithmetic on the layout. Of the units whose optimizer is offloaded, s are this rank's elements,
S = 1 + the optimizer's states of an element, e and a the bytes of an element of the training dtype and of the gradient
sum that comes down:

=============  ==========================================  ==============================================
what           cpu                                         nvme
=============  ==========================================  ==============================================
to_host        a * s                                       a * s
to_device      e * s                                       e * s
file_written   0                                           4 * S * s + a * s
file_read      0                                           4 * S * s + a * s
=============  ==========================================  ==============================================

a is the accumulator's e, or that of the dtype that travels if that is less and only one contribution makes the sum
(N = 1, and A = 1 or the boundary schedule): a sum of several does not fit into 16 bits, and no bit may change. So in
16-bit training a step moves exactly 4 bytes for each owned element, both ways together, wherever gradients are kept in
16 bits (``accumulator_dtype``) or one rank trains without accumulation, and 6 if they are kept in fp32.

Of units whose parameters are offloaded nothing comes up after the update: e * s goes up for each gather, from the host
or from the file, and comes down after an update on the device.

In files every sub-group's states, its gradient sum, and every piece of a shard take whole pages of 4096 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from zerobench.oracles.rules import state_keys
from zerobench.recording import OffloadBytes
from zerobench.scenario import Scenario
from zerobench.theory.layout import Unit, owned, units
from zerobench.theory.rounds import play
from zerobench.workload.data import DTYPES

_FP32 = 4
_PAGE = 4096

#: What the numbers of the reference engine are made of; see the module's text for s, S, e and a.
FORMULAS = {
    "to_host": "a * s, and e * shards whose update on the device goes to parameters off it",
    "to_device": "e * s, but for units whose parameters are offloaded; these e * shard at each gather",
    "file_read": "pages of 4 * S and of a for each sub-group; pages of e for each piece of a shard, at each gather",
    "file_written": "pages of 4 * S and of a for each sub-group; pages of e for each piece of a trainable shard",
    "parameters": "e * shards of offloaded units",
    "gradients": "a * s",
    "optimizer": "4 * S * s",
    "buffers": "cpu, 16 bits: two sub-groups in e; nvme: (1 + read ahead + write behind) sub-groups in 4 * S + a + e, "
    "and buffer_count pieces of a shard",
}


def states(scenario: Scenario) -> int:
    """fp32 values that the optimizer's rule keeps for each element."""
    return len(state_keys(scenario.optimizer))


def stepped_off(scenario: Scenario, cut: Iterable[Unit]) -> list[Unit]:
    """The units whose gradient sum, master and optimizer states are off the device."""
    if scenario.optimizer_at == "none":
        return []
    trained = [unit for unit in cut if unit.trainable]
    return _first(trained, scenario.offload_ratio * owned(trained))


def kept_off(scenario: Scenario, cut: Iterable[Unit]) -> list[Unit]:
    """The units whose parameters are off the device."""
    return [unit for unit in cut if not unit.persistent] if scenario.parameters_at != "none" else []


def _first(cut: list[Unit], elements: float) -> list[Unit]:
    """Units from the first on, as long as their shards together have at most so many elements."""
    return [unit for i, unit in enumerate(cut) if owned(cut[: i + 1]) <= elements]


def arriving(scenario: Scenario) -> int:
    """Bytes of an element of the gradient sum that comes down."""
    accumulator = DTYPES[scenario.accumulator_dtype or "fp32"].itemsize
    contributions = scenario.leaves if scenario.reduction == "micro_step" else scenario.world
    wire = DTYPES[scenario.communication_dtype or scenario.dtype].itemsize
    return min(wire, accumulator) if contributions == 1 else accumulator


def predicted(scenario: Scenario, model: nn.Module, step: int = 2) -> OffloadBytes:
    """The same on every rank; moved in step ``step`` (from 0), which is not skipped."""
    cut = units(scenario, model)
    off = _Off(scenario, cut)
    return OffloadBytes(*map(_known, (off.host(), off.files(), off.moved(_gathers(scenario, model, step)))))


def _known(sizes: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}


def _gathers(scenario: Scenario, model: nn.Module, step: int) -> list[Unit]:
    """The sharded units, as often as the step gathers them."""
    if scenario.parameters_at == "none" or all(unit.persistent for unit in units(scenario, model)):
        return []
    return [unit for micro in play(scenario, model, step + 1)[step] for each in micro.rounds for unit in each]


class _Off:
    """A Scenario's units off the device, and their bytes."""

    def __init__(self, scenario: Scenario, cut: list[Unit]) -> None:
        self.scenario, self.cut = scenario, cut
        self.stepped, self.kept = stepped_off(scenario, cut), kept_off(scenario, cut)
        in_memory = self.kept if scenario.parameters_at == "cpu" else _first(self.kept, scenario.max_in_cpu)
        self.in_memory, self.in_file = in_memory, [unit for unit in self.kept if unit not in in_memory]
        self.e, self.a = DTYPES[scenario.dtype].itemsize, arriving(scenario)
        self.fp32 = _FP32 * (1 + states(scenario))
        self.rounded = self.e if scenario.dtype != "fp32" else 0  # in fp32 the master itself goes up

    def host(self) -> dict[str, int]:
        """By category."""
        sizes = {"parameters": self.e * owned(self.in_memory), "buffers": self._shard_buffers()}
        if self.stepped and self.scenario.optimizer_at == "cpu":
            sizes["buffers"] += 2 * self.rounded * min(self.scenario.sub_group, _largest(self.stepped))
            return sizes | {"gradients": self.a * owned(self.stepped), "optimizer": self.fp32 * owned(self.stepped)}
        if self.stepped:
            sizes["buffers"] += self._buffers * self._buffer(self._sub_group())
        return sizes

    def files(self) -> dict[str, int]:
        """By category."""
        sizes = {"parameters": sum(map(self._shard_pages, self.in_file))}
        if self.scenario.optimizer_at == "nvme":
            sizes["optimizer"] = self._pages(self.fp32)
            sizes["gradients"] = self._pages(self.a)
        return sizes

    def moved(self, gathers: list[Unit]) -> dict[str, int]:
        """In a step that gathers these units."""
        e, kept, updated = self.e, self.kept, [unit for unit in self.kept if unit.trainable]
        states_and_sums = self._pages(self.fp32) + self._pages(self.a) if self.scenario.optimizer_at == "nvme" else 0
        return {
            "to_host": self.a * owned(self.stepped) + e * owned(u for u in updated if u not in self.stepped),
            "to_device": e * owned(u for u in self.stepped if u not in kept)
            + e * owned(u for u in gathers if u in kept),
            "file_read": states_and_sums + sum(self._shard_pages(u) for u in gathers if u in self.in_file),
            "file_written": states_and_sums + sum(self._shard_pages(u) for u in updated if u in self.in_file),
        }

    @property
    def _buffers(self) -> int:
        return 1 + self.scenario.pipeline_read + self.scenario.pipeline_write

    def _buffer(self, elements: int) -> int:
        return sum(_up(each * elements) for each in (self.fp32, self.a, self.rounded))

    def _sub_group(self) -> int:
        """Elements of a sub-group in files: the setting, in whole chunks, as far as it fits the buffers."""
        scenario, chunk = self.scenario, self.scenario.chunk
        budget = _FP32 * scenario.buffer_count * scenario.buffer_size // self._buffers
        fitting = (budget - 3 * _PAGE) // (self.fp32 + self.a + self.rounded) // chunk * chunk
        return max(chunk, min(scenario.sub_group // chunk * chunk, fitting, _largest(self.stepped)))

    def _pages(self, size: int) -> int:
        """Bytes in files of a state of ``size`` bytes an element, all sub-groups together."""
        if not self.stepped:
            return 0
        group = self._sub_group()
        return sum(_up(size * elements) for unit in self.stepped for elements in _cut(unit.shard, group))

    def _shard_buffer(self) -> int:
        """Bytes of a piece of a shard, whole pages."""
        return min(self.scenario.buffer_size * self.e // _PAGE * _PAGE, _up(_largest(self.in_file) * self.e))

    def _shard_buffers(self) -> int:
        return self.scenario.buffer_count * self._shard_buffer() if self.in_file else 0

    def _shard_pages(self, unit: Unit) -> int:
        return sum(_up(size) for size in _cut(unit.shard * self.e, self._shard_buffer()))


def _largest(cut: Iterable[Unit]) -> int:
    return max((unit.shard for unit in cut), default=0)


def _up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _cut(whole: int, size: int) -> Iterator[int]:
    """The lengths of the parts that ``whole`` is cut into."""
    for start in range(0, whole, size):
        yield min(size, whole - start)
