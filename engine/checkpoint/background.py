"""Background saves: the values are copied to host memory, and a thread writes the copies while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.pieces import Piece
from zerobench.engine.checkpoint.shard_file import FileEntry, Stored
from zerobench.engine.ops.packing import clones


class BackgroundWrite:
    """A shard file that a thread writes: :meth:`copy` copies the values, :meth:`begin` starts the thread, and
    :meth:`written` returns what it has written.

    Training may change the values after :meth:`copy` has returned. The process does not end before the thread.
    """

    def __init__(self, path: Path, pieces: Sequence[Piece]) -> None:
        self._path, self._pieces = path, pieces
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._result: tuple[FileEntry, list[Stored]] | None = None

    def copy(self) -> None:
        """Copy the values of the pieces to host memory."""
        values = [piece.values() for piece in self._pieces]
        copies = iter(clones([each for each, piece in zip(values, self._pieces, strict=True) if piece.live]))
        values = [next(copies) if piece.live else each for each, piece in zip(values, self._pieces, strict=True)]
        self._thread = threading.Thread(target=self._run, args=(values,), name="zerobench-checkpoint")

    def begin(self) -> None:
        """Start the thread, after all ranks have copied: it would take processor time from a rank that still does."""
        assert self._thread is not None
        self._thread.start()

    def _run(self, values: Sequence[Tensor]) -> None:
        try:
            self._result = shard_file.write(self._path, [piece.range for piece in self._pieces], values)
        except BaseException as error:  # noqa: BLE001 - written() raises it
            self._error = error

    @property
    def done(self) -> bool:
        """Whether the thread has ended."""
        return self._thread is None or not self._thread.is_alive()

    def written(self) -> tuple[FileEntry, list[Stored]]:
        """The result of shard_file.write, after a wait until the file is on the drive; raises its error."""
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


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
