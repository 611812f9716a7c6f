"""One rank: a process that joins the process group once and then runs the tasks its parent sends."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerobench.errors import UsageError
from zerobench.machine.launch import Launch
from zerobench.machine.products import fix_gpu
from zerobench.ranks.message import decode, encode

#: The parent sends this signal to ask a worker for the stacks of its threads.
DUMP_STACKS = signal.SIGUSR1
#: Set in a worker while it owes a reply; meanwhile nothing can come from the parent except its end.
BUSY = threading.Event()

#: malloc.h's limits: free bytes at the heap's end above which they are returned, block size above which it is mapped.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class RankSlot:
    """One rank, as the parent describes it to its worker at the start.

    ``directory`` is private to this generation of workers; None for a worker that a launcher has started.
    """

    rank: int
    world: int
    device: str
    threads: int
    directory: Path | None = None
    launch: Launch | None = None  # if a launcher has started the ranks

    @property
    def store(self) -> Path:
        """The file at which the ranks meet."""
        return self._file("store")

    @property
    def output(self) -> Path:
        """The running task's output, and native code's standard error."""
        return self._file(f"output-{self.rank}")

    @property
    def stacks(self) -> Path:
        """The file of the stacks on :data:`DUMP_STACKS`."""
        return self._file(f"stacks-{self.rank}")

    def _file(self, name: str) -> Path:
        assert self.directory is not None
        return self.directory / name


@dataclass(frozen=True)
class Returned:
    """The task returned on this rank."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The task raised on this rank."""

    exception: str  # the name of its class
    error: str  # "ValueError: first line of its message"
    traceback: str
    usage: str | None  # the whole message, if it is a UsageError
    issued: int  # collectives that the group had issued by then; counted for a UsageError only


def main(slot: RankSlot, connection: Connection) -> None:
    """Serve tasks as a child process of the pool."""
    assert slot.directory is not None
    threading.Thread(target=end_with_parent, args=(slot.directory,), daemon=True).start()
    serve(slot, connection, _become_quiet(slot))


def serve(slot: RankSlot, connection: Connection, output: int | None = None) -> None:
    """Serve tasks until the parent closes its end; the first message tells if the group could be joined.

    ``output`` is a file that is emptied before each task; None if output goes elsewhere.
    """
    BUSY.set()
    try:
        groups = _join(slot)
    except Exception as error:  # noqa: BLE001 - the parent reports any error
        _send(connection, encode(_raised(error)))
        return
    _send(connection, encode(Returned(None)))
    while (message := _receive(connection)) is not None:
        BUSY.set()
        if output is not None:
            os.ftruncate(output, 0)
        torch.set_num_threads(slot.threads)  # the task before may have left another number
        _send(connection, _reply(message, groups))
    dist.destroy_process_group()


def _become_quiet(slot: RankSlot) -> int:
    """Send both standard streams to a file, and the stacks that the parent asks for to another; returns the first."""
    output = os.open(slot.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    speak()
    faulthandler.register(DUMP_STACKS, os.open(slot.stacks, os.O_WRONLY | os.O_CREAT), all_threads=True)
    return output


def speak() -> None:
    """Print to the present descriptors 1 and 2, write the stacks there if this process crashes, and leave interrupts
    to the parent."""
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - by lines, to outlive a SIGKILL
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent(directory: Path) -> None:
    """End this process if the parent is gone for any reason.

    The parent is the process that made the pool; only it holds a pipe open, and this waits for that pipe's end. (Under
    forkserver the operating system's parent is the fork server, which lives as long as its workers.)
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


def _join(slot: RankSlot) -> dict[int, dist.ProcessGroup]:
    """The group of the first n ranks for every n, by n; made once, as each costs a rendezvous of all ranks."""
    torch.set_num_threads(slot.threads)
    backend = "gloo"
    if slot.device == "cuda":
        backend = _take_gpu(slot)
    else:
        _compute_in_batches()
        _keep_freed_memory()
    if slot.launch is None or slot.launch.on_loopback:
        _use_loopback()
    meeting = {"store": slot.launch.store(host=False)} if slot.launch else {"init_method": f"file://{slot.store}"}
    dist.init_process_group(backend, **meeting, rank=slot.rank, world_size=slot.world)
    smaller = range(1, slot.world) if slot.launch is None else range(1, min(2, slot.world))
    return {**{n: dist.new_group(range(n)) for n in smaller}, slot.world: dist.group.WORLD}


def _take_gpu(slot: RankSlot) -> str:
    """Compute on the GPU of this rank's number on its host; returns the backend.

    Raises:
        UsageError: if the host has no GPU.
    """
    rank, world = (slot.launch.local_rank, slot.launch.local_world) if slot.launch else (slot.rank, slot.world)
    devices = torch.cuda.device_count()
    if devices == 0:
        raise UsageError("device 'cuda' was asked for, but torch sees no CUDA GPU on this rank's host; give 'cpu'")
    fix_gpu()
    torch.cuda.set_device(rank % devices)
    # NCCL refuses two ranks on one GPU. Tensors on the CPU need gloo in either case.
    return "cpu:gloo,cuda:nccl" if devices >= world else "gloo"


def _compute_in_batches() -> None:
    """Use Linux's batch scheduling policy for this thread and those that it starts.

    Under the default policy, if a message wakes a thread, it may preempt the sender, which holds gloo's lock of that
    connection; gloo's own thread then polls for the lock until the sender is back (docs/notes/speed.md).
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(PermissionError):  # some sandboxes forbid it; the results' environment has the policy in force
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _keep_freed_memory() -> None:
    """Let glibc's malloc reuse freed memory instead of returning it to the system, as torch's CUDA allocator does.

    Otherwise a step pays for thousands of fresh pages or for none, depending on the data at the heap's end
    (docs/notes/speed.md).
    """
    with suppress(OSError, AttributeError):  # another C library
        malloc = ctypes.CDLL(None)
        malloc.mallopt(M_TRIM_THRESHOLD, -1)
        malloc.mallopt(M_MMAP_THRESHOLD, 2**30)


def _use_loopback() -> None:
    """Let gloo use loopback, so that the kernel's counters see all of its traffic and no host name must resolve."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _receive(connection: Connection) -> bytes | None:
    """The next task, or None if the parent closed its end."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


def _send(connection: Connection, reply: bytes) -> None:
    """Reply; if the parent is gone, the next read shows it."""
    BUSY.clear()  # before the parent can send the next message
    with suppress(ConnectionError):
        connection.send_bytes(reply)


def _reply(message: bytes, groups: dict[int, dist.ProcessGroup]) -> bytes:
    """Run one task; all of its locals are gone when the reply is returned."""
    group = None
    try:
        world, task, args = decode(message)
        group = groups[world]
        return encode(Returned(task(group, *args)))
    except BaseException as error:  # noqa: BLE001 - if a task calls sys.exit, it has failed too
        return encode(_raised(error, group))


def _raised(error: BaseException, group: Any = None) -> Raised:
    lines, frames = str(error).splitlines() or [""], error.__traceback__  # the first frame is this file's own
    is_usage = isinstance(error, UsageError)
    return Raised(
        exception=type(error).__name__,
        error=f"{type(error).__name__}: {lines[0]}".removesuffix(": "),
        traceback="".join(traceback.format_exception(type(error), error, frames and (frames.tb_next or frames))),
        usage=str(error) if is_usage else None,
        issued=group._get_sequence_number_for_group() if is_usage and group else 0,
    )
