"""The optimizer store in a file: the CPU reads, updates and writes sub-groups through a few buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Handle, Works
from zerobench.engine.errors import ConfigError
from zerobench.engine.layout import Unit
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.host import OffloadedOptimizerStore
from zerobench.engine.state.pages import PAGE, page_memory, whole_pages
from zerobench.engine.state.portion import Portion
from zerobench.engine.state.scratch import ScratchFile
from zerobench.engine.state.stores import ParameterStore, UpdateSlice, cut

_FP32 = 4
Part = Literal["states", "gradient"]
_PARTS: tuple[Part, Part] = ("states", "gradient")


@dataclass(frozen=True)
class Record:
    """Bytes per element of a sub-group: of the fp32 states, the gradient sum and the rounded parameter."""

    states: int
    gradient: int
    parameter: int

    def memory(self, elements: int) -> int:
        """Bytes of the buffer of a sub-group with this many elements: each of the three in whole pages."""
        return sum(whole_pages(each * elements) for each in (self.states, self.gradient, self.parameter))

    def fitting(self, budget: int, chunk: int) -> int:
        """The number of elements, in whole chunks, that surely fit into a buffer of ``budget`` bytes."""
        each = self.states + self.gradient + self.parameter
        return max(0, budget - 3 * PAGE) // each // chunk * chunk


@dataclass(eq=False)
class _SubGroup:
    """Elements [start, stop) of one unit's shard; the offset of each part in the file, and the parts written."""

    index: int  # in the order of adoption
    start: int
    stop: int
    at: dict[Part, int]
    written: set[Part] = field(default_factory=set)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self.stop - self.start


class _Buffer:
    """Memory of one sub-group in flight: states, gradient sum, rounded parameter."""

    def __init__(self, record: Record, elements: int, pin: bool) -> None:
        self.memory = page_memory(record.memory(elements), pin=pin)
        self._gradient = whole_pages(record.states * elements)
        self._parameter = self._gradient + whole_pages(record.gradient * elements)
        self.busy: list[Handle] = []  # its copies, reads and writes that may be pending

    def free(self) -> _Buffer:
        """Wait until no work needs the values, and return the buffer."""
        for handle in self.busy:
            handle.wait()
        self.busy = []
        return self

    def states(self, size: int) -> Tensor:
        """The first ``size`` bytes of the states, in whole pages."""
        return self.memory[: whole_pages(size)]

    def gradient(self, size: int) -> Tensor:
        """The first ``size`` bytes of the gradient sum, in whole pages."""
        return self.memory[self._gradient : self._gradient + whole_pages(size)]

    def parameter(self, size: int) -> Tensor:
        """The first ``size`` bytes of the rounded parameter."""
        return self.memory[self._parameter : self._parameter + size]


@dataclass
class _Opened:
    """A part of a sub-group for reading and editing, in a buffer; whether the file lacks an edit."""

    part: Part
    group: _SubGroup
    buffer: _Buffer
    edited: bool = False


class FileOptimizerStore(OffloadedOptimizerStore):
    """Gradient sum, master and optimizer states of every unit in a file; memory holds the active sub-groups.

    There are 1 + ``read_ahead`` + ``write_behind`` buffers, of at most ``budget`` bytes together. A sub-group has at
    most ``sub_group`` elements, in whole chunks, and fewer if its buffer would not fit. The store uses the buffers in
    rotation, and waits until a buffer's values have been written and sent before it uses the buffer again.

    Units may be requested in any order. With ``read_ahead`` the store reads the next sub-group in the order of
    adoption, of any unit, while the CPU updates this one. If another sub-group is requested next, or if the sub-group
    changes meanwhile, the store discards these values. With ``write_behind`` an update overlaps with the last write.

    A part that is read or edited stays in its buffer until the buffer is needed, so that calls for one parameter after
    another read it once. An edit is written at once, or within :meth:`editing` when the next part is opened.

    Raises:
        ConfigError: the budget is too small for the smallest sub-groups.
    """

    def __init__(
        self,
        names: Sequence[str],
        copies: Copies,
        arriving: torch.dtype,
        file: ScratchFile,
        units: Sequence[Unit],
        *,
        dtype: torch.dtype,
        sub_group: int,
        budget: int,
        read_ahead: bool,
        write_behind: bool,
    ) -> None:
        super().__init__(names, copies, arriving)
        self.file, self.read_ahead, self.write_behind = file, read_ahead, write_behind
        states = (1 + len(self.names)) * _FP32
        self.record = Record(states, arriving.itemsize, dtype.itemsize if dtype != torch.float32 else 0)
        count = 1 + read_ahead + write_behind
        self.sub_group = _sub_group(self.record, units, sub_group, budget, count)
        self._buffers = [_Buffer(self.record, self.sub_group, copies.pinned) for _ in range(count)]
        self._parameters: dict[Portion, ParameterStore] = {}
        self._groups: dict[Portion, list[_SubGroup]] = {}
        self._order: list[_SubGroup] = []  # in the order of adoption
        self._ahead: _Read | None = None
        self._filling: tuple[_SubGroup, _Buffer] | None = None
        self._opened: _Opened | None = None
        self._writes_late = False
        self._bytes = {"optimizer": 0, "gradients": 0}

    def adopt(self, portion: Portion, parameters: ParameterStore, master: Tensor, gradient: Tensor) -> None:
        self._parameters[portion] = parameters
        self._groups[portion] = []
        for start, stop in cut(portion.unit.shard, self.sub_group):
            group = _SubGroup(len(self._order), start, stop, self._reserve(stop - start))
            self._groups[portion].append(group)
            self._order.append(group)
            buffer = self._turn()
            states = self._states(buffer, group)
            states.zero_()
            buffer.busy.append(self.copies.down(master[start:stop], states[0]))
            self._write_part("states", buffer, group)

    def _reserve(self, elements: int) -> dict[Part, int]:
        sizes: dict[Part, int] = {"states": self.record.states * elements, "gradient": self.record.gradient * elements}
        self._bytes["optimizer"] += whole_pages(sizes["states"])
        self._bytes["gradients"] += whole_pages(sizes["gradient"])
        return {part: self.file.reserve(size) for part, size in sizes.items()}

    # Gradients

    def _keep(self, portion: Portion, start: int, stop: int, values: Tensor) -> None:
        """Fill the buffer of each sub-group, from its start on, and write each full buffer."""
        for group in self._groups[portion][start // self.sub_group : -(-stop // self.sub_group)]:
            lo, hi = max(start, group.start), min(stop, group.stop)
            buffer = self._to_fill(group, begins=lo == group.start)
            kept = self._gradient(buffer, group)[lo - group.start : hi - group.start]
            buffer.busy.append(self.copies.down(values[lo - start : hi - start], kept))
            if hi == group.stop:
                self._filling = None
                self._write_part("gradient", buffer, group)

    def _to_fill(self, group: _SubGroup, *, begins: bool) -> _Buffer:
        """The buffer for the sub-group's gradient sum.

        Raises:
            RuntimeError: the sub-group begun before is incomplete and is not this one.
        """
        if begins:
            self._filling = group, self._turn()
        if self._filling is None or self._filling[0] is not group:
            raise RuntimeError("the ranges of one unit's gradient sum must come in order and without gaps")
        return self._filling[1]

    # The update

    def update_slices(self, portion: Portion) -> Iterator[UpdateSlice]:
        parameters = self._parameters[portion]
        for group in self._groups[portion]:
            buffer = self._fetch(group)
            rounded = buffer.parameter(self.record.parameter * group.elements).view(portion.dtype)
            direct = parameters.view(group.start, group.stop, host=True)
            parameter = direct if direct is not None else rounded if rounded.numel() else None
            master, *states = self._states(buffer, group)
            yield UpdateSlice(group.start, group.stop, self._gradient(buffer, group), master, states, parameter)
            if direct is None:
                values = master if parameter is None else parameter
                buffer.busy.append(parameters.accept(group.start, values, host=True))
            self._write_part("states", buffer, group)
        self.copies.join()

    def _fetch(self, group: _SubGroup) -> _Buffer:
        """Read the sub-group, return its buffer, and start reading the next sub-group if ``read_ahead`` is set."""
        if self._ahead is None or self._ahead.group is not group:
            self._discard()
            self._ahead = self._start_read(group)
        read, self._ahead = self._ahead, None
        read.arrived.wait()
        following = self._following(group) if self.read_ahead else None
        if following is not None:
            self._ahead = self._start_read(following)
        return read.buffer

    def _following(self, group: _SubGroup) -> _SubGroup | None:
        """The sub-group after this one in the order of adoption; None after the last, which ends a step."""
        return self._order[group.index + 1] if group.index + 1 < len(self._order) else None

    def _start_read(self, group: _SubGroup) -> _Read:
        buffer = self._turn()
        return _Read(
            group, buffer, Works([self._read_part(part, buffer, group) for part in _PARTS if part in group.written])
        )

    def _discard(self) -> None:
        """Discard the sub-group read ahead: another one is requested, or its values have changed."""
        if self._ahead is not None:
            self._ahead.arrived.wait()
            self._ahead = None

    # Mechanism

    def _turn(self) -> _Buffer:
        """Free and return the least recently used buffer; the last one used is ``_buffers[0]``."""
        buffer = self._buffers.pop()
        if self._opened is not None and self._opened.buffer is buffer:
            self._close()
        self._buffers.insert(0, buffer)
        if self._ahead is not None and self._ahead.buffer is buffer:
            self._discard()
        if self._filling is not None and self._filling[1] is buffer:
            self._filling = None
        return buffer.free()

    def _read_part(self, part: Part, buffer: _Buffer, group: _SubGroup) -> Handle:
        return self.file.read(group.at[part], self._memory(part, buffer, group))

    def _write_part(self, part: Part, buffer: _Buffer, group: _SubGroup) -> None:
        """Write a part when its buffer's copies have arrived; wait for the write unless ``write_behind`` is set."""
        if self._ahead is not None and self._ahead.group is group:
            self._discard()
        if self._opened is not None and self._opened.group is group and self._opened.buffer is not buffer:
            self._close()
        write = self.file.write(group.at[part], self._memory(part, buffer, group), Works(list(buffer.busy)))
        buffer.busy.append(write)
        group.written.add(part)
        if not self.write_behind:
            write.wait()

    def _memory(self, part: Part, buffer: _Buffer, group: _SubGroup) -> Tensor:
        """A part's whole pages."""
        states = part == "states"
        size = self.record.states if states else self.record.gradient
        return buffer.states(size * group.elements) if states else buffer.gradient(size * group.elements)

    def _states(self, buffer: _Buffer, group: _SubGroup) -> Tensor:
        """[states, elements]: the master first."""
        size = self.record.states * group.elements
        return buffer.memory[:size].view(torch.float32).view(1 + len(self.names), -1)

    def _gradient(self, buffer: _Buffer, group: _SubGroup) -> Tensor:
        size = self.record.gradient * group.elements
        return buffer.gradient(size)[:size].view(self.arriving)

    # Reading and editing

    def read(self, portion: Portion, name: str, start: int, stop: int) -> Tensor:
        part: Part = "gradient" if name == "gradient" else "states"
        values = torch.zeros(stop - start, dtype=self.arriving if part == "gradient" else torch.float32)
        for group, lo, hi in self._overlapping(portion, start, stop):
            if part in group.written:  # otherwise there was no gradient yet
                kept = self._kept(self._open(part, group), name)
                values[lo - start : hi - start] = kept[lo - group.start : hi - group.start]
        return values.to(portion.device)

    def write(self, portion: Portion, name: str, start: int, values: Tensor) -> None:
        for group, lo, hi in self._overlapping(portion, start, start + values.numel()):
            opened = self._open("gradient" if name == "gradient" else "states", group)
            self._kept(opened, name)[lo - group.start : hi - group.start] = values[lo - start : hi - start]
            opened.edited = True
            if not self._writes_late:
                self._write_edits()

    @contextmanager
    def editing(self) -> Iterator[None]:
        self._writes_late = True
        try:
            yield
        finally:
            self._writes_late = False
            self._write_edits()

    def _open(self, part: Part, group: _SubGroup) -> _Opened:
        """The part in a buffer: the last one opened, or one that is read now."""
        opened = self._opened
        if opened is None or opened.part != part or opened.group is not group:
            self._close()
            opened = _Opened(part, group, self._turn())
            if part in group.written:
                self._read_part(part, opened.buffer, group).wait()
            else:
                self._memory(part, opened.buffer, group).zero_()
            self._opened = opened  # it has the values
        opened.buffer.free()
        return opened

    def _close(self) -> None:
        self._write_edits()
        self._opened = None

    def _write_edits(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and opened.edited:
            opened.edited = False
            self._write_part(opened.part, opened.buffer, opened.group)
        self._opened = opened  # the file has its values

    def _kept(self, opened: _Opened, name: str) -> Tensor:
        if opened.part == "gradient":
            return self._gradient(opened.buffer, opened.group)
        return self._states(opened.buffer, opened.group)[("master", *self.names).index(name)]

    def _overlapping(self, portion: Portion, start: int, stop: int) -> Iterator[tuple[_SubGroup, int, int]]:
        """The unit's sub-groups that overlap [start, stop), each with the bounds of the overlap."""
        for group in self._groups[portion]:
            lo, hi = max(start, group.start), min(stop, group.stop)
            if lo < hi:
                yield group, lo, hi

    def host(self) -> dict[str, list[Tensor]]:
        return {"buffers": [buffer.memory for buffer in self._buffers]}

    def files(self) -> dict[str, int]:
        return dict(self._bytes)


@dataclass(frozen=True)
class _Read:
    """A pending read of a sub-group from the file to a buffer."""

    group: _SubGroup
    buffer: _Buffer
    arrived: Handle


def _sub_group(record: Record, units: Sequence[Unit], asked: int, budget: int, buffers: int) -> int:
    """The number of elements of a sub-group."""
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
