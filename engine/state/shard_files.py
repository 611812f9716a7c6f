"""Homes in a file: a unit's shard of the parameters is read for each gather, through a few buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done
from zerobench.engine.errors import ConfigError
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.scratch import PAGE, ScratchFile, page_memory, pages
from zerobench.engine.state.stores import Handle, Home, cut
from zerobench.engine.state.unit import UnitState


@dataclass
class _Piece:
    """Elements [start, stop) of a shard, where in the file they lie, and their last write."""

    start: int
    stop: int
    at: int
    written: Handle


class _Buffer:
    """Memory of one piece on its way."""

    def __init__(self, size: int, pin: bool) -> None:
        self.memory = page_memory(size, pin=pin)
        self.busy: Handle = Done()


class ShardFiles:
    """The file and the buffers of all homes in it: ``count`` buffers of at most ``size`` bytes, in whole pages.

    One buffer is never used for reading ahead, so that what is wanted now can always be read.

    Raises:
        ConfigError: a buffer is smaller than a page.
    """

    def __init__(self, file: ScratchFile, copies: Copies, *, count: int, size: int, largest: int) -> None:
        if size < PAGE:
            raise ConfigError(
                f"offload_param: a buffer of {size} bytes is less than a page ({PAGE}): raise buffer_size"
            )
        self.file, self.copies = file, copies
        self.size = min(size // PAGE * PAGE, pages(largest))
        self.buffers = [_Buffer(self.size, copies.pinned) for _ in range(count)]

    def turn(self) -> _Buffer:
        """The buffer that was used longest ago and holds nothing read ahead, free."""
        buffer = self.buffers.pop(0)
        self.buffers.append(buffer)
        buffer.busy.wait()
        return buffer

    def reserve(self) -> _Buffer | None:
        """A buffer to read ahead into, which is to be given back; None where only one is left."""
        if len(self.buffers) < 2:
            return None
        buffer = self.buffers.pop(0)
        buffer.busy.wait()
        return buffer

    def give_back(self, buffer: _Buffer) -> None:
        """What was read ahead has been used, or is on its way."""
        self.buffers.append(buffer)


class FileHome(Home):
    """One unit's shard in pieces of a buffer each."""

    def __init__(self, state: UnitState, files: ShardFiles) -> None:
        self._files, self._elements, self._device = files, state.unit.shard, state.full.device
        self._dtype = state.dtype
        self._width = files.size // self._dtype.itemsize
        self._pieces = [
            _Piece(start, stop, files.file.reserve((stop - start) * self._dtype.itemsize), Done())
            for start, stop in cut(self._elements, self._width)
        ]
        self._ahead: list[tuple[_Buffer, Handle]] = []  # of the first pieces
        self.accept(0, state.shard, host=False)
        state.shard = state.shard.new_empty(0)

    def prefetch(self) -> None:
        if self._ahead:
            return
        for piece in self._pieces:
            buffer = self._files.reserve()
            if buffer is None:
                return
            self._ahead.append((buffer, self._read(piece, buffer)))

    def load(self) -> Tensor:
        shard = torch.empty(self._elements, dtype=self._dtype, device=self._device)
        ahead, self._ahead = self._ahead, []
        for index, piece in enumerate(self._pieces):
            early = index < len(ahead)
            buffer = ahead[index][0] if early else self._files.turn()
            read = ahead[index][1] if early else self._read(piece, buffer)
            read.wait()
            buffer.busy = self._files.copies.up(self._values(piece, buffer), shard[piece.start : piece.stop])
            if early:
                self._files.give_back(buffer)
        self._files.copies.join()
        return shard

    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        return None

    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        self._forget()
        stop = start + values.numel()
        arrived: Handle = Done()
        for piece in self._pieces[start // self._width : -(-stop // self._width)]:
            lo, hi = max(start, piece.start), min(stop, piece.stop)
            buffer = self._files.turn() if lo == piece.start else self._files.buffers[-1]
            kept = self._values(piece, buffer)[lo - piece.start : hi - piece.start]
            if host:
                kept.copy_(values[lo - start : hi - start])
            else:
                arrived = self._files.copies.down(values[lo - start : hi - start], kept)
            if hi == piece.stop:
                piece.written = buffer.busy = self._files.file.write(piece.at, self._memory(piece, buffer), arrived)
        return arrived

    def _forget(self) -> None:
        """What was read ahead is the value from before."""
        for buffer, read in self._ahead:
            read.wait()
            self._files.give_back(buffer)
        self._ahead = []

    def _read(self, piece: _Piece, buffer: _Buffer) -> Handle:
        return self._files.file.read(piece.at, self._memory(piece, buffer), piece.written)

    def _memory(self, piece: _Piece, buffer: _Buffer) -> Tensor:
        """The piece's whole pages."""
        return buffer.memory[: pages((piece.stop - piece.start) * self._dtype.itemsize)]

    def _values(self, piece: _Piece, buffer: _Buffer) -> Tensor:
        return buffer.memory[: (piece.stop - piece.start) * self._dtype.itemsize].view(self._dtype)
