"""Scratch files: space on a drive that is read and written while the engine computes, and checked.

The standard library does all of it. ``os.preadv`` and ``os.pwritev`` take buffers of any alignment without a copy and
let other threads run, so a small pool of threads keeps several requests under way, which is what an asynchronous
interface would be for; io_uring and libaio have no binding in the standard library, and DeepSpeed's needs a compiler
and a library of the system's.
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

from zerobench.engine.comm.collectives import Done, Handle
from zerobench.engine.errors import ConfigError, OffloadError

#: What direct I/O wants memory, offsets and lengths to be multiples of.
PAGE = 4096
#: Bytes of one request.
_BLOCK = 4 << 20
_THREADS = max(4, min(8, os.cpu_count() or 4))
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def pages(size: int) -> int:
    """``size`` bytes rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def page_memory(size: int, *, pin: bool) -> Tensor:
    """uint8 [size] that starts on a page, page-locked for CUDA with ``pin``."""
    if pin:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # what is shared is in no limit on the process's memory
    return torch.frombuffer(mmap.mmap(-1, size, private), dtype=torch.uint8)


class ScratchFile:
    """A file without a name in ``directory``, which grows as space is reserved in it.

    It has no name from the start, so no other run can meet it, and the system frees its space when the process ends,
    however it ends: nothing is ever left that a next start could read or trip over. It is read and written directly
    (O_DIRECT) where the file system can, else through the page cache.

    Of every block that is written the XXH3 checksum is kept and compared when it is read, so that a file that was
    changed, or a drive that lost something, is an error and never a wrong number. (zlib's CRC-32 takes five times as
    long, which a fast drive would wait for.)

    Raises:
        ConfigError: no such directory, not a directory, or no file can be made in it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.size = directory, 0
        self._descriptor = _open(directory)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.direct = _make_direct(self._descriptor)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="zerobench-files")
        self._writes: list[Handle] = []  # since they were last settled
        self._written: dict[int, tuple[int, int]] = {}  # offset of a block: its length and checksum

    def reserve(self, size: int) -> int:
        """Make room for ``size`` bytes, in whole pages, and return where they start.

        Raises:
            OffloadError: there is no room.
        """
        start, size = self.size, pages(size)
        if size:
            try:
                os.posix_fallocate(self._descriptor, start, size)
            except OSError as error:
                raise self._failed(f"reserve {size} bytes at {start}", error) from error
        self.size += size
        return start

    def write(self, offset: int, values: Tensor, after: Handle | None = None) -> Handle:
        """Start writing ``values`` (uint8, whole pages, from a page on) at ``offset``, once ``after`` is over.

        What is waited for is that they are written. The values must not change before.
        """
        write = self._start(self._write_block, offset, values, after or Done())
        self._writes.append(write)
        return write

    def settle(self) -> None:
        """Return when all writes started so far are over.

        Raises:
            OffloadError: one failed.
        """
        writes, self._writes = self._writes, []
        for write in writes:
            write.wait()

    def read(self, offset: int, values: Tensor, after: Handle | None = None) -> Handle:
        """Start reading what was written at ``offset`` into ``values``, as :meth:`write` does."""
        return self._start(self._read_block, offset, values, after or Done())

    def _start(
        self, block: Callable[[int, memoryview, Handle], None], offset: int, values: Tensor, after: Handle
    ) -> Handle:
        memory = memoryview(values.numpy())  # type: ignore[arg-type]  # numpy's stubs hide its buffer
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
        """End what is under way and give the space back."""
        self._threads.shutdown(cancel_futures=True)
        self._close()


class _Transfer:
    """The blocks of one transfer; keeps its memory alive."""

    def __init__(self, blocks: list[Future[None]], values: Tensor) -> None:
        self._blocks, self._values = blocks, values

    def wait(self) -> None:
        wait(self._blocks)
        for block in self._blocks:
            block.result()


def _open(directory: Path) -> int:
    """A file descriptor of a new file without a name."""
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
    """Ask for direct I/O and try it; whether the file system can."""
    before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, before | os.O_DIRECT)
        os.pwrite(descriptor, mmap.mmap(-1, PAGE), 0)
    except (AttributeError, OSError):  # not on every system, nor in every file system
        fcntl.fcntl(descriptor, fcntl.F_SETFL, before)
        return False
    return True
