"""States in files: sub-groups are read, updated by the CPU and written back, through a few buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from zerobench.engine.errors import ConfigError
from zerobench.engine.layout import Unit
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.host import Offloaded
from zerobench.engine.state.scratch import PAGE, ScratchFile, page_memory, pages
from zerobench.engine.state.stores import Handle, Window, cut
from zerobench.engine.state.unit import UnitState

_FP32 = 4
Part = Literal["states", "gradient"]


@dataclass(frozen=True)
class Record:
    """What one element of a sub-group takes: its fp32 states, its gradient sum and its rounded parameter, in bytes."""

    states: int
    gradient: int
    parameter: int

    def memory(self, elements: int) -> int:
        """Bytes of the buffer of a sub-group of so many elements: each of the three in whole pages."""
        return sum(pages(each * elements) for each in (self.states, self.gradient, self.parameter))

    def fitting(self, budget: int, chunk: int) -> int:
        """The most elements, in whole chunks, whose buffer is sure to fit into ``budget`` bytes."""
        each = self.states + self.gradient + self.parameter
        return max(0, budget - 3 * PAGE) // each // chunk * chunk


@dataclass
class _SubGroup:
    """Elements [start, stop) of one unit's shard, where in the file each part of them lies, and its last write."""

    start: int
    stop: int
    at: dict[Part, int]
    written: dict[Part, Handle] = field(default_factory=dict)


class _Buffer:
    """Memory of one sub-group on its way: states, gradient sum, rounded parameter."""

    def __init__(self, record: Record, elements: int, pin: bool) -> None:
        self.memory = page_memory(record.memory(elements), pin=pin)
        self._gradient = pages(record.states * elements)
        self._parameter = self._gradient + pages(record.gradient * elements)
        self.busy: list[Handle] = []  # what still reads or writes it

    def free(self) -> _Buffer:
        """The buffer, when nothing needs what it holds any more."""
        for handle in self.busy:
            handle.wait()
        self.busy = []
        return self

    def states(self, size: int) -> Tensor:
        """The first ``size`` bytes of the states, in whole pages."""
        return self.memory[: pages(size)]

    def gradient(self, size: int) -> Tensor:
        """Likewise of the gradient sum."""
        return self.memory[self._gradient : self._gradient + pages(size)]

    def parameter(self, size: int) -> Tensor:
        """The first ``size`` bytes of the rounded parameter."""
        return self.memory[self._parameter : self._parameter + size]


class NvmePlace(Offloaded):
    """Gradient sum, master and optimizer states of every unit in a file; in memory, what is being worked on.

    A sub-group has at most ``sub_group`` elements, in whole chunks, and fewer where its buffer would not fit: there are
    1 + ``read_ahead`` + ``write_behind`` buffers, and together they take no more than ``budget`` bytes. They serve in
    turn, and each waits before it is used again until what it held has been written and sent. With ``read_ahead`` the
    next sub-group, of whatever unit, is read while the CPU updates this one; with ``write_behind`` the one before is
    still being written.

    Raises:
        ConfigError: the budget does not hold the smallest sub-groups.
    """

    def __init__(
        self,
        copies: Copies,
        arriving: torch.dtype,
        file: ScratchFile,
        units: Sequence[Unit],
        *,
        dtype: torch.dtype,
        states: int,
        sub_group: int,
        budget: int,
        read_ahead: bool,
        write_behind: bool,
    ) -> None:
        super().__init__(copies, arriving)
        self.file, self.read_ahead, self.write_behind = file, read_ahead, write_behind
        self.record = Record(states * _FP32, arriving.itemsize, dtype.itemsize if dtype != torch.float32 else 0)
        count = 1 + read_ahead + write_behind
        self.sub_group = _sub_group(self.record, units, sub_group, budget, count)
        self._buffers = [_Buffer(self.record, self.sub_group, copies.pinned) for _ in range(count)]
        self._groups: dict[UnitState, list[_SubGroup]] = {}
        self._order: list[_SubGroup] = []
        self._next = 0  # in the order, to be read
        self._read: tuple[_Buffer, list[Handle]] | None = None  # the next, where it is being read
        self._names: Sequence[str] = ()
        self._bytes = {"optimizer": 0, "gradients": 0}

    def adopt(self, state: UnitState, names: Sequence[str]) -> None:
        self._names = ("master", *names)
        self._groups[state] = []
        for start, stop in cut(state.unit.shard, self.sub_group):
            group = _SubGroup(start, stop, self._reserve(stop - start))
            self._groups[state].append(group)
            self._order.append(group)
            buffer = self._turn()
            states = self._states(buffer, group)
            states.zero_()
            buffer.busy.append(self.copies.down(state.master[start:stop], states[0]))
            self._write_part("states", buffer, group)
        state.master = state.master.new_empty(0)

    def _reserve(self, elements: int) -> dict[Part, int]:
        sizes: dict[Part, int] = {"states": self.record.states * elements, "gradient": self.record.gradient * elements}
        self._bytes["optimizer"] += pages(sizes["states"])
        self._bytes["gradients"] += pages(sizes["gradient"])
        return {part: self.file.reserve(size) for part, size in sizes.items()}

    # Gradients

    def _keep(self, state: UnitState, start: int, stop: int, values: Tensor) -> None:
        """Fill the buffer of each sub-group, from its start on; a full one is written."""
        for group in self._groups[state][start // self.sub_group : -(-stop // self.sub_group)]:
            lo, hi = max(start, group.start), min(stop, group.stop)
            buffer = self._turn() if lo == group.start else self._buffers[0]
            kept = self._gradient(buffer, group)[lo - group.start : hi - group.start]
            buffer.busy.append(self.copies.down(values[lo - start : hi - start], kept))
            if hi == group.stop:
                self._write_part("gradient", buffer, group)

    # The update

    def windows(self, state: UnitState) -> Iterator[Window]:
        for group in self._groups[state]:
            buffer = self._fetched()
            elements = group.stop - group.start
            rounded = buffer.parameter(self.record.parameter * elements).view(state.dtype)
            direct = state.home.view(group.start, group.stop, host=True)
            parameter = direct if direct is not None else rounded if rounded.numel() else None
            master, *states = self._states(buffer, group)
            yield Window(group.start, group.stop, self._gradient(buffer, group), master, states, parameter)
            if direct is None:
                values = master if parameter is None else parameter
                buffer.busy.append(state.home.accept(group.start, values, host=True))
            self._write_part("states", buffer, group)
        self.copies.join()

    def _fetched(self) -> _Buffer:
        """The next sub-group's buffer, read; the one after it is being read from now on, where that is wanted."""
        buffer, reads = self._read or self._start_read()
        for read in reads:
            read.wait()
        self._next = (self._next + 1) % len(self._order)
        self._read = self._start_read() if self.read_ahead and self._next else None
        return buffer

    def _start_read(self) -> tuple[_Buffer, list[Handle]]:
        group, buffer = self._order[self._next], self._turn()
        return buffer, [self._read_part(part, buffer, group) for part in ("states", "gradient")]

    # Mechanism

    def _turn(self) -> _Buffer:
        """The buffer that was used longest ago, free; the last one used is ``_buffers[0]``."""
        self._buffers.insert(0, self._buffers.pop())
        return self._buffers[0].free()

    def _read_part(self, part: Part, buffer: _Buffer, group: _SubGroup) -> Handle:
        return self.file.read(group.at[part], self._memory(part, buffer, group), group.written[part])

    def _write_part(self, part: Part, buffer: _Buffer, group: _SubGroup) -> None:
        """Write it once what the buffer waits for has arrived; without ``write_behind`` wait for that."""
        write = self.file.write(group.at[part], self._memory(part, buffer, group), _All(buffer.busy))
        buffer.busy.append(write)
        group.written[part] = write
        if not self.write_behind:
            write.wait()

    def _memory(self, part: Part, buffer: _Buffer, group: _SubGroup) -> Tensor:
        """A part's whole pages."""
        elements = group.stop - group.start
        states = part == "states"
        size = self.record.states if states else self.record.gradient
        return buffer.states(size * elements) if states else buffer.gradient(size * elements)

    def _states(self, buffer: _Buffer, group: _SubGroup) -> Tensor:
        """[states, elements]: the master first."""
        size = self.record.states * (group.stop - group.start)
        return buffer.memory[:size].view(torch.float32).view(len(self._names), -1)

    def _gradient(self, buffer: _Buffer, group: _SubGroup) -> Tensor:
        size = self.record.gradient * (group.stop - group.start)
        return buffer.gradient(size)[:size].view(self.arriving)

    # Reading and editing

    def read(self, state: UnitState, name: str) -> Tensor:
        gradient = name == "gradient"
        whole = torch.empty(state.unit.shard, dtype=self.arriving if gradient else torch.float32)
        for group in self._groups[state]:
            buffer = self._turn()
            self._read_part("gradient" if gradient else "states", buffer, group).wait()
            kept = self._gradient(buffer, group) if gradient else self._states(buffer, group)[self._names.index(name)]
            whole[group.start : group.stop] = kept
        return whole.to(state.full.device)

    def write_master(self, state: UnitState, values: Tensor) -> None:
        for group in self._groups[state]:
            buffer = self._turn()
            self._read_part("states", buffer, group).wait()
            self._states(buffer, group)[0] = values[group.start : group.stop]
            self._write_part("states", buffer, group)

    def host(self) -> dict[str, list[Tensor]]:
        return {"buffers": [buffer.memory for buffer in self._buffers]}

    def files(self) -> dict[str, int]:
        return dict(self._bytes)


class _All:
    """Several handles as one."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)

    def wait(self) -> None:
        for handle in self._handles:
            handle.wait()


def _sub_group(record: Record, units: Sequence[Unit], asked: int, budget: int, buffers: int) -> int:
    """Elements of a sub-group."""
    chunk = units[0].chunk
    fitting = record.fitting(budget // buffers, chunk)
    if not fitting:
        least = buffers * (record.memory(chunk) + 3 * PAGE)
        raise ConfigError(
            f"offload_optimizer: buffer_count * buffer_size are {budget} bytes, too few for {buffers} sub-groups of "
            f"one chunk ({chunk} elements) at once; {least} bytes are enough: raise buffer_size, or lower chunk_size"
        )
    largest = max(unit.shard for unit in units)
    return max(chunk, min(largest, asked // chunk * chunk, fitting))
