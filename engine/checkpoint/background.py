"""Background saves: the values are copied to host memory, and a thread writes the copies while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.pieces import Range
from zerobench.engine.checkpoint.shard_file import FileEntry, Stored


class BackgroundWrite:
    """A writer of one shard file: :meth:`write` copies the values, and a thread writes the copies after :meth:`begin`.

    Training may change the values after :meth:`write` has returned. The process does not end before the thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stored: list[Stored] = []

    def write(self, path: Path, ranges: Sequence[Range], values: Iterable[Tensor]) -> tuple[FileEntry, list[Stored]]:
        """Like shard_file.write, whose checksums :meth:`join` returns and whose errors it raises."""
        copies = [tensor.clone() for tensor in values]
        self._thread = threading.Thread(target=self._run, args=(path, ranges, copies), name="zerobench-checkpoint")
        return shard_file.planned(path.name, ranges)

    def begin(self) -> None:
        """Start the thread, after all ranks have copied: it would take processor time from a rank that still does."""
        if self._thread is not None:
            self._thread.start()

    def _run(self, path: Path, ranges: Sequence[Range], copies: Sequence[Tensor]) -> None:
        try:
            _, self._stored = shard_file.write(path, ranges, copies)
        except BaseException as error:  # noqa: BLE001 - join() raises it
            self._error = error

    @property
    def done(self) -> bool:
        """Whether the thread has ended."""
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> list[Stored]:
        """Wait until the file is on the drive, and raise the error if it could not be written.

        Returns:
            The position of each piece, with the checksums of its blocks.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._stored


class PendingSave:
    """A checkpoint that a thread of each rank writes; it gets its name, and becomes the latest, in :meth:`wait`."""

    def __init__(self, writing: BackgroundWrite, finish: Callable[[], None]) -> None:
        self._writing, self._finish = writing, finish
        self._over = False

    @property
    def done(self) -> bool:
        """Whether this rank's file is on the drive, or could not be written, so that :meth:`wait` is quick."""
        return self._writing.done

    def wait(self) -> None:
        """Wait until all ranks have written, and publish the checkpoint. A collective; a second call does nothing.

        Raises:
            CheckpointError: it could not be saved.
        """
        if not self._over:
            self._over = True
            self._finish()
