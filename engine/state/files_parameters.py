"""The parameter store in a file: reads a unit's shard for each gather, through a few buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done, Handle
from zerobench.engine.errors import ConfigError
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.pages import PAGE, page_memory, whole_pages
from zerobench.engine.state.portion import Portion
from zerobench.engine.state.scratch import ScratchFile
from zerobench.engine.state.stores import ParameterStore, cut


@dataclass(frozen=True, eq=False)
class _Piece:
    """Elements [start, stop) of a shard, and their offset in the file."""

    start: int
    stop: int
    at: int


class _Buffer:
    """Memory of one piece in flight."""

    def __init__(self, size: int, pin: bool) -> None:
        self.memory = page_memory(size, pin=pin)
        self.busy: Handle = Done()


class ShardFiles:
    """The file and the buffers of all stores in it: ``count`` buffers of at most ``size`` bytes, in whole pages.

    One buffer is never used for reading ahead, so a shard can always be read at once.

    Raises:
        ConfigError: a buffer is smaller than a page.
    """

    def __init__(self, file: ScratchFile, copies: Copies, *, count: int, size: int, largest: int) -> None:
        if size < PAGE:
            raise ConfigError(
                f"offload_param: a buffer of {size} bytes is less than a page ({PAGE}): raise buffer_size"
            )
        self.file, self.copies = file, copies
        self.size = min(size // PAGE * PAGE, whole_pages(largest))
        self.buffers = [_Buffer(self.size, copies.pinned) for _ in range(count)]

    def turn(self) -> _Buffer:
        """Free and return the least recently used buffer without values read ahead; it is now the last used."""
        buffer = self.buffers.pop(0)
        self.buffers.append(buffer)
        buffer.busy.wait()
        return buffer

    def reserve(self) -> _Buffer | None:
        """A buffer for reading ahead, to be given back; None if only one is left."""
        if len(self.buffers) < 2:
            return None
        buffer = self.buffers.pop(0)
        buffer.busy.wait()
        return buffer

    def give_back(self, buffer: _Buffer) -> None:
        """Give back a buffer after the values read ahead have been used or sent."""
        self.buffers.append(buffer)


class FileParameterStore(ParameterStore):
    """One unit's shard, in pieces of one buffer each.

    Args:
        portion: the unit.
        shard: its initial values, [unit.shard] on the device; the store writes them to the file.
        files: the file and the buffers, shared by all these stores.
    """

    def __init__(self, portion: Portion, shard: Tensor, files: ShardFiles) -> None:
        self._files, self._elements, self._device = files, portion.unit.shard, portion.device
        self._dtype = portion.dtype
        self._width = files.size // self._dtype.itemsize
        self._pieces = [
            _Piece(start, stop, files.file.reserve((stop - start) * self._dtype.itemsize))
            for start, stop in cut(self._elements, self._width)
        ]
        self._ahead: list[tuple[_Buffer, Handle]] = []  # reads of the first pieces
        self._filling: tuple[_Piece, _Buffer] | None = None
        self.accept(0, shard, host=False)

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
            buffer = self._to_fill(piece, begins=lo == piece.start)
            kept = self._values(piece, buffer)[lo - piece.start : hi - piece.start]
            if host:
                kept.copy_(values[lo - start : hi - start])
            else:
                arrived = self._files.copies.down(values[lo - start : hi - start], kept)
            if hi == piece.stop:
                buffer.busy = self._files.file.write(piece.at, self._memory(piece, buffer), arrived)
        return arrived

    def _to_fill(self, piece: _Piece, *, begins: bool) -> _Buffer:
        """The buffer for the piece's new values.

        Raises:
            RuntimeError: the piece was not begun, or its buffer has since been used for another one.
        """
        if begins:
            self._filling = piece, self._files.turn()
        if self._filling is None or self._filling[0] is not piece or self._files.buffers[-1] is not self._filling[1]:
            raise RuntimeError("the new values of one unit's parameters must come in order and without gaps")
        return self._filling[1]

    def _forget(self) -> None:
        """Discard the values read ahead, because they are old."""
        for buffer, read in self._ahead:
            read.wait()
            self._files.give_back(buffer)
        self._ahead = []

    def _read(self, piece: _Piece, buffer: _Buffer) -> Handle:
        return self._files.file.read(piece.at, self._memory(piece, buffer))

    def _memory(self, piece: _Piece, buffer: _Buffer) -> Tensor:
        """The piece's whole pages."""
        return buffer.memory[: whole_pages((piece.stop - piece.start) * self._dtype.itemsize)]

    def _values(self, piece: _Piece, buffer: _Buffer) -> Tensor:
        return buffer.memory[: (piece.stop - piece.start) * self._dtype.itemsize].view(self._dtype)
