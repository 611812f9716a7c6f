"""Scratch files: checked storage on a drive, read and written while the engine computes.

The module needs only the standard library. ``os.preadv`` and ``os.pwritev`` accept buffers of any alignment without a
copy and release the GIL, so a small pool of threads keeps several requests pending, like an asynchronous interface.
The standard library has no binding of io_uring or libaio, and DeepSpeed's binding needs a compiler and a system
library.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from zerobench.engine.comm.collectives import Done, Handle, Works
from zerobench.engine.errors import ConfigError, OffloadError
from zerobench.engine.state.pages import PAGE, whole_pages

#: Bytes of one request.
_BLOCK = 4 << 20
_THREADS = max(4, min(8, os.cpu_count() or 4))
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ScratchFile:
    """A file without a name in ``directory``, which grows when space is reserved in it.

    It never has a name, so no other run can open it, and the system frees its space if the process ends in any way.
    Later runs find no leftover file. Reads and writes are direct (O_DIRECT) if the file system supports it, otherwise
    they use the page cache.

    A read or a write at an offset starts after the last write there. Its memory may not change before it is over.

    The file keeps the XXH3 checksum of every block written and compares it at every read. So if the file was changed or
    the drive lost data, the read raises an error and never returns wrong numbers. (zlib's CRC-32 takes five times as
    long, which would slow a fast drive down.)

    Args:
        directory: on the drive to use.
        device: the device of the copies that a read or a write waits for.

    Raises:
        ConfigError: ``directory`` is missing, is not a directory, or does not allow to create a file.
    """

    def __init__(self, directory: Path, device: torch.device) -> None:
        self.directory, self.size = directory, 0
        self._descriptor = _open(directory)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.direct = _make_direct(self._descriptor)
        self._threads = ThreadPoolExecutor(_THREADS, "zerobench-files", *_on(device))
        self._writes: list[Handle] = []  # the writes since the last settle()
        self._last: dict[int, Handle] = {}  # the last write at each offset
        self._written: dict[int, tuple[int, int]] = {}  # by the offset of a block, its length and checksum

    def reserve(self, size: int) -> int:
        """Make room for ``size`` bytes, in whole pages, and return their offset.

        Raises:
            OffloadError: there is not enough space.
        """
        start, size = self.size, whole_pages(size)
        if size:
            try:
                os.posix_fallocate(self._descriptor, start, size)
            except OSError as error:
                raise self._failed(f"reserve {size} bytes at {start}", error) from error
        self.size += size
        return start

    def write(self, offset: int, values: Tensor, after: Handle | None = None) -> Handle:
        """Start writing ``values`` (uint8, whole pages, starting on a page) at ``offset`` when ``after`` is over.

        The handle waits until they are written.
        """
        write = self._start(self._write_block, offset, values, Works([self._written_at(offset), after or Done()]))
        self._writes.append(write)
        self._last[offset] = write
        return write

    def settle(self) -> None:
        """Wait until all writes started so far are over.

        Raises:
            OffloadError: a write failed.
        """
        writes, self._writes = self._writes, []
        for write in writes:
            write.wait()

    def read(self, offset: int, values: Tensor) -> Handle:
        """Start reading the values written at ``offset`` into ``values``, which are like those of a write."""
        return self._start(self._read_block, offset, values, self._written_at(offset))

    def _written_at(self, offset: int) -> Handle:
        return self._last.get(offset, Done())

    def _start(
        self, block: Callable[[int, memoryview, Handle], None], offset: int, values: Tensor, after: Handle
    ) -> Handle:
        memory = memoryview(values.numpy())  # type: ignore[arg-type]  # numpy's stubs hide the buffer
        cuts = range(0, len(memory), _BLOCK)
        return _Transfer(
            [self._threads.submit(block, offset + at, memory[at : at + _BLOCK], after) for at in cuts], values
        )

    def _write_block(self, offset: int, memory: memoryview, after: Handle) -> None:
        after.wait()
        self._written[offset] = len(memory), xxhash.xxh3_64_intdigest(memory)
        done = 0
        while done < len(memory):
            try:
                done += os.pwritev(self._descriptor, [memory[done:]], offset + done)
            except OSError as error:
                raise self._failed(f"write {len(memory)} bytes at {offset}", error) from error

    def _read_block(self, offset: int, memory: memoryview, after: Handle) -> None:
        after.wait()
        done = 0
        while done < len(memory):
            try:
                got = os.preadv(self._descriptor, [memory[done:]], offset + done)
            except OSError as error:
                raise self._failed(f"read {len(memory)} bytes at {offset}", error) from error
            if got == 0:
                raise OffloadError(
                    f"a file in {str(self.directory)!r} ends after {offset + done} bytes, where {len(memory)} bytes "
                    f"were written at {offset}: something cut it off; the states are lost"
                )
            done += got
        if self._written.get(offset) != (len(memory), xxhash.xxh3_64_intdigest(memory)):
            raise OffloadError(
                f"a file in {str(self.directory)!r} does not hold what was written: the {len(memory)} bytes at "
                f"{offset} have another checksum; something else wrote there, or the drive failed; the states are lost"
            )

    def _failed(self, what: str, error: OSError) -> OffloadError:
        hint = "free some space, lift the limit, or choose another nvme_path" if error.errno in _NO_ROOM else ""
        return OffloadError(
            f"could not {what} of a file in {str(self.directory)!r}: {error.strerror}" + (f"; {hint}" if hint else "")
        )

    def close(self) -> None:
        """Wait for the pending work and free the space."""
        self._threads.shutdown(cancel_futures=True)
        self._close()


class _Transfer:
    """The blocks of one transfer; keeps the transfer's memory alive."""

    def __init__(self, blocks: list[Future[None]], values: Tensor) -> None:
        self._blocks, self._values = blocks, values

    def wait(self) -> None:
        wait(self._blocks)
        for block in self._blocks:
            block.result()


def _on(device: torch.device) -> tuple[Callable[..., None], tuple[torch.device]]:
    """The initializer of a thread that uses ``device``, and its arguments.

    A thread that waits for an event of CUDA without a current device would create a context on device 0, which takes
    half a gigabyte of that device in every rank.
    """
    return torch.cuda.set_device if device.type == "cuda" else lambda _: None, (device,)


def _open(directory: Path) -> int:
    """The descriptor of a new file without a name."""
    where = f"nvme_path {str(directory)!r}"
    if not directory.exists():
        raise ConfigError(f"{where} does not exist; make the directory, or name another")
    if not directory.is_dir():
        raise ConfigError(f"{where} is not a directory; name a directory on the drive to use")
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise ConfigError(f"no file can be made in {where}: {error.strerror}; name a directory to write to") from None


def _make_direct(descriptor: int) -> bool:
    """Enable direct I/O and try it; whether the file system supports it."""
    before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, before | os.O_DIRECT)
        os.pwrite(descriptor, mmap.mmap(-1, PAGE), 0)
    except (AttributeError, OSError):  # some systems and file systems do not support it
        fcntl.fcntl(descriptor, fcntl.F_SETFL, before)
        return False
    return True
