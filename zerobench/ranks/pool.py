"""Pool: a set of ranks that outlives its tasks."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from zerobench.errors import RankFailure, UsageError
from zerobench.ranks import worker
from zerobench.ranks.failure import RankFault, RankReport, how_it_died
from zerobench.ranks.message import decode, encode
from zerobench.ranks.progress import Progress
from zerobench.ranks.worker import Raised, RankSlot, Returned

T = TypeVar("T")

#: Seconds that a task may take if the caller gives no limit.
TIME_LIMIT = 120.0
#: Seconds between two looks at ranks that have not all replied.
_LOOK = 0.5
#: Seconds that the other ranks get for their tracebacks after the first sign of a failure.
GRACE = 1.0
#: Seconds that a worker gets to write its stacks or to end; this takes milliseconds if the machine is idle, ...
_DUMPING = 5.0
#: ... and for which its stacks stay unchanged if they are complete.
_WRITTEN = 0.2
#: Instead of a rank's output and stacks if a launcher has started it.
_ELSEWHERE = "its output, with its stacks, is in its launcher's standard error"

#: Modules that the fork server imports besides its own; see :func:`preload`.
_PRELOADED: list[str] = []


@dataclass(frozen=True)
class _Crashed:
    exit_code: int | None


_Reply = Returned | Raised | _Crashed


@dataclass(frozen=True)
class Worker:
    """A rank as its parent sees it; ``process`` is None if a launcher has started it, maybe on another machine."""

    slot: RankSlot
    process: BaseProcess | None
    connection: Connection

    @property
    def signs_of_life(self) -> list[Any]:
        """The objects that become ready if the rank replies or is gone."""
        return [self.connection, *([self.process.sentinel] if self.process else [])]

    def receive(self) -> _Reply:
        """The reply that is ready, or the process's death."""
        try:
            data = self.connection.recv_bytes() if self.connection.poll() else b""
        except (EOFError, OSError):
            data = b""
        if data:
            return decode(data)  # type: ignore[no-any-return]
        if self.process is None:
            return _Crashed(None)
        self.process.join(_DUMPING)  # the pipe breaks a moment before the process is gone
        return _Crashed(self.process.exitcode)

    def report(self, reply: _Reply | None, waiting: str) -> RankReport:
        """The rank's end; if it has no reply, it is still running, as ``waiting`` says."""
        rank, output = self.slot.rank, _read(self.slot.output) if self.process else ""
        match reply:
            case Returned():
                return RankReport(rank, None, "returned", output=output)
            case Raised():
                return RankReport(rank, "raised", f"raised {reply.error}", reply.traceback, output, reply.exception)
            case _Crashed():
                return RankReport(
                    rank, "crashed", how_it_died(reply.exit_code), "" if self.process else _ELSEWHERE, output
                )
        return RankReport(rank, "timeout", waiting, _stacks(self.slot) if self.process else _ELSEWHERE, output)

    def dump_stacks(self) -> None:
        """Make the rank write its stacks. If a launcher has started it, it then ends."""
        if self.process is None:
            self.kill()
            return
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, worker.DUMP_STACKS)

    def kill(self) -> None:
        """End it at once: a child by a signal, any other rank by closing the connection, after which it ends itself."""
        if self.process:
            self.process.kill()
        else:
            self.connection.close()


class Pending(Generic[T]):
    """A task that the ranks run; the parent may compute meanwhile."""

    def __init__(self, pool: Pool, world: int, timeout: float) -> None:
        self._pool = pool
        self._world = world
        self._limit = f"did not finish within {timeout:g} s"
        self._deadline = time.monotonic() + timeout
        self._values: list[T] | None = None

    def result(self) -> list[T]:
        """The task's result on each rank, in rank order; waits for it.

        Raises:
            UsageError: if every rank raised this same UsageError.
            RankFault: if a rank raised, died or did not finish; see :class:`Pool`.
        """
        if self._values is None:
            try:
                self._values = self._values_of(self._collect())
            except UsageError:
                raise
            except BaseException:  # even if the parent is interrupted, no reply is left for the next task
                self._pool._stop()
                raise
            finally:
                self._pool._pending = None
        return self._values

    def _collect(self) -> dict[int, _Reply]:
        """Replies by rank in order of arrival; after the first failure the others have the grace period."""
        workers = self._pool._workers[: self._world]
        progress = Progress([each.process.pid or 0 for each in workers if each.process])
        replies: dict[int, _Reply] = {}
        while len(replies) < self._world:
            sources: dict[Any, Worker] = {
                source: each for each in workers if each.slot.rank not in replies for source in each.signs_of_life
            }
            ready = wait(list(sources), self._patience())
            if not ready and self._is_over(progress):
                break
            for each in {sources[source].slot.rank: sources[source] for source in ready}.values():
                replies[each.slot.rank] = reply = each.receive()
                if not isinstance(reply, Returned):
                    self._deadline = min(self._deadline, time.monotonic() + GRACE)
        return replies

    def _patience(self) -> float:
        """Seconds until the deadline or the next look; no look disturbs ranks that may be idle for any time."""
        remaining = max(0.0, self._deadline - time.monotonic())
        return min(_LOOK, remaining) if math.isfinite(self._pool.idle) else remaining

    def _is_over(self, progress: Progress) -> bool:
        """Whether the time limit has passed, or no rank has done anything for the pool's ``idle`` seconds."""
        if math.isfinite(self._pool.idle) and progress.still() > self._pool.idle:
            self._limit = f"did nothing for {self._pool.idle:g} s"
            return True
        return time.monotonic() >= self._deadline

    def _values_of(self, replies: dict[int, _Reply]) -> list[T]:
        returned = {rank: reply.value for rank, reply in replies.items() if isinstance(reply, Returned)}
        if len(returned) == self._world:
            return [returned[rank] for rank in range(self._world)]
        _raise_common_usage_error(list(replies.values()), self._world)
        workers = self._pool._workers[: self._world]
        still_running = [each for each in workers if each.slot.rank not in replies]
        _dump_stacks(still_running)
        self._pool._kill()
        failed = len(returned) < len(replies)
        waiting = "still waited when the fault ended the task" if failed else self._limit
        order = [workers[rank] for rank in replies] + still_running
        fault = RankFault([each.report(replies.get(each.slot.rank), waiting) for each in order])
        raise fault if self._pool.recovers else RankFailure(str(fault))


class Pool:
    """Runs a task on real ranks, which keep their process group from one task to the next.

    A rank is a process; ranks 0..n-1 have a group for every n up to ``world``. On the CPU the backend is gloo; on CUDA
    it is NCCL if there are at least ``world`` GPUs, otherwise gloo. Workers start with the first task, and end when the
    pool is closed or this process is gone. One task runs at a time; a pool belongs to one thread.

    Failure. If a rank raises, it sends its traceback; if it dies, its exit shows it; if it hangs, the time limit does,
    or ``idle`` seconds in which no rank has done anything (:class:`~zerobench.ranks.progress.Progress`). After the
    first of these the other ranks have a second for their own reports; if a rank still runs the task then, it writes
    the stacks of its threads. Then the pool kills every worker and waits for it. :class:`RankFault` has the
    cause and each rank's report, and the next task starts fresh workers. One error leaves the workers alive: if every
    rank raises the same UsageError after equally many collectives, the pool raises that error itself.

    Raises:
        UsageError: if the world size is below 1, or if CUDA is requested and missing.
    """

    #: Whether a task after a fault gets fresh workers.
    recovers: ClassVar[bool] = True

    def __init__(self, world: int, device: str = "cpu", threads: int = 1, idle: float = math.inf) -> None:
        if world < 1:
            raise UsageError(f"a world of {world} ranks was asked for; give at least 1")
        if device not in ("cpu", "cuda"):
            raise UsageError(f"device {device!r} was asked for; give 'cpu' or 'cuda'")
        if device == "cuda" and not torch.cuda.is_available():
            raise UsageError("device 'cuda' was asked for, but torch sees no CUDA GPU here; give 'cpu'")
        self.world = world
        self.device = device
        self.threads = threads
        self.idle = idle
        self._workers: list[Worker] = []
        self._pending: Pending[Any] | None = None
        self._directory: Path | None = None

    @property
    def worlds(self) -> Sequence[int]:
        """The world sizes that have a group, each of the first ranks."""
        return range(1, self.world + 1)

    def run(self, task: Callable[..., T], *args: Any, world: int | None = None, timeout: float = TIME_LIMIT) -> list[T]:
        """``task(group, *args)`` on ranks 0..world-1: the result of each, in rank order.

        ``task`` is a function at the top of a module; it, ``args`` and the results travel by pickle, tensors by value.

        Raises:
            UsageError: if the pool lacks this world, if the task cannot be pickled, or if every rank raised it.
            RankFault: if a rank raised, died or did not finish within ``timeout`` seconds.
        """
        return self.submit(task, *args, world=world, timeout=timeout).result()

    def submit(
        self, task: Callable[..., T], *args: Any, world: int | None = None, timeout: float = TIME_LIMIT
    ) -> Pending[T]:
        """Like :meth:`run`, without waiting. If the previous result was not taken, it first waits for and drops it."""
        world = self.world if world is None else world
        if world not in self.worlds:
            raise UsageError(
                f"a world of {world} ranks was asked for; this pool has {', '.join(map(str, self.worlds))}"
            )
        message = _encode_task(world, task, args)
        self._settle()
        if not self._workers:
            self._start()
        for each in self._workers[:world]:
            with suppress(OSError):  # it died just now: reading its reply shows that
                each.connection.send_bytes(message)
        self._pending = Pending(self, world, timeout)
        return self._pending

    def _settle(self) -> None:
        """Leave workers that are ready for a task, or none."""
        if self._pending:
            with suppress(UsageError, RankFailure):
                self._pending.result()
        if wait([each.process.sentinel for each in self._workers if each.process], 0):
            self._stop()

    def _start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="zerobench-"))
        atexit.register(self.close)
        try:
            self._start_ranks(self._directory)
        except BaseException:
            self._stop()
            raise
        Pending[None](self, self.world, TIME_LIMIT).result()

    def _start_ranks(self, directory: Path) -> None:
        """Fill ``_workers``, in rank order."""
        for rank in range(self.world):
            self._workers.append(start_rank(RankSlot(rank, self.world, self.device, self.threads, directory)))

    def _kill(self) -> None:
        for each in self._workers:
            each.kill()
        for each in self._workers:
            if each.process:
                each.process.join()

    def _stop(self) -> None:
        """End the workers at once and drop them."""
        self._kill()
        for each in self._workers:
            each.connection.close()
            if each.process:
                each.process.close()
        self._workers = []
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        atexit.unregister(self.close)

    def close(self) -> None:
        """End the workers; a later task would start new ones."""
        if not self._pending:
            for each in self._workers:
                each.connection.close()
            for each in self._workers:
                if each.process:
                    each.process.join(GRACE)
        self._pending = None
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def preload(*modules: str) -> None:
    """Make the fork server import these modules, so that ranks start with them; called before the first rank starts."""
    _PRELOADED.extend(name for name in modules if name not in _PRELOADED)


def preloaded() -> list[str]:
    """The modules that the fork server imports."""
    return ["__main__", *_PRELOADED, "zerobench.ranks.forkserver"]


def start_rank(slot: RankSlot) -> Worker:
    """Start the process of one rank. If a process has used CUDA, it cannot be forked, so CUDA needs spawn."""
    cuda = slot.device == "cuda"
    context = multiprocessing.get_context("spawn") if cuda else multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded())
    ours, theirs = context.Pipe()
    with theirs:
        process = context.Process(target=worker.main, args=(slot, theirs), name=f"rank {slot.rank}", daemon=True)
        process.start()
    return Worker(slot, process, ours)


def _encode_task(world: int, task: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return encode((world, task, args))
    except Exception as error:
        raise UsageError(f"a task must be a module's function with arguments that pickle takes: {error}") from error


def _raise_common_usage_error(replies: list[_Reply], world: int) -> None:
    """Raise the UsageError if all ranks agree on it; if collective counts are equal, no rank waits for its peers."""
    errors = [(reply.usage, reply.issued) for reply in replies if isinstance(reply, Raised) and reply.usage is not None]
    if len(errors) == world and len(set(errors)) == 1:
        raise UsageError(errors[0][0])


def _dump_stacks(workers: list[Worker]) -> None:
    """Make ranks that still run the task write their stacks, and wait for them."""
    for each in workers:
        each.dump_stacks()
    if any(each.process is None for each in workers):
        time.sleep(GRACE)
    written = [each.slot.stacks for each in workers if each.process]
    deadline, before = time.monotonic() + _DUMPING, [0]
    while written and time.monotonic() < deadline:
        sizes = [len(_read(path)) for path in written]  # a rank that has not begun has no file
        if all(sizes) and sizes == before:
            return
        before = sizes
        time.sleep(_WRITTEN)


def _stacks(slot: RankSlot) -> str:
    """The stacks of the rank's threads, without our thread that waits for the parent's end."""
    threads = _read(slot.stacks).split("\n\n")
    return "\n\n".join(stack for stack in threads if worker.end_with_parent.__name__ not in stack)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
