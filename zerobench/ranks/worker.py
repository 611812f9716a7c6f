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
from zerobench.ranks.launch import Launch
from zerobench.ranks.parcel import pack, unpack

#: The parent sends this signal to ask a worker for the stacks of its threads.
DUMP_STACKS = signal.SIGUSR1
#: Set in a worker while it is at a task; until it replies, nothing can come from the parent but its end.
BUSY = threading.Event()

#: Of malloc.h: bytes free at the heap's end from which they are given back, and of a block from which it is a mapping.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Seat:
    """What a worker is told when it starts; ``directory`` is private to this generation of workers."""

    rank: int
    world: int
    device: str
    threads: int
    directory: Path
    launch: Launch | None = None  # where somebody else has started the ranks

    @property
    def store(self) -> Path:
        """Where the ranks meet."""
        return self.directory / "store"

    @property
    def output(self) -> Path:
        """What the running task printed, and what native code wrote to its standard error."""
        return self.directory / f"output-{self.rank}"

    @property
    def stacks(self) -> Path:
        """Where the stacks go on :data:`DUMP_STACKS`."""
        return self.directory / f"stacks-{self.rank}"


@dataclass(frozen=True)
class Returned:
    """The task returned on this rank."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The task raised on this rank."""

    error: str  # "ValueError: first line of its message"
    traceback: str
    usage: str | None  # the whole message, where it is a UsageError
    issued: int  # collectives that the group had issued by then; counted for a UsageError only


def main(seat: Seat, connection: Connection) -> None:
    """Serve tasks as a child process of the pool's."""
    threading.Thread(target=end_with_parent, args=(seat.directory,), daemon=True).start()
    serve(seat, connection)


def serve(seat: Seat, connection: Connection) -> None:
    """Serve tasks until the parent closes its end; the first message says whether the group could be joined."""
    output = _become_quiet(seat)
    try:
        groups = _join(seat)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        connection.send_bytes(pack(_raised(error)))
        return
    connection.send_bytes(pack(Returned(None)))
    while (message := _receive(connection)) is not None:
        os.ftruncate(output, 0)
        BUSY.set()
        reply = _reply(message, groups)
        BUSY.clear()  # before the parent can send the next message
        connection.send_bytes(reply)
    dist.destroy_process_group()


def _become_quiet(seat: Seat) -> int:
    """Send both standard streams to a file and leave interrupts to the parent; returns the file's descriptor."""
    output = os.open(seat.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - by lines, to outlive a SIGKILL
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(output)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(DUMP_STACKS, os.open(seat.stacks, os.O_WRONLY | os.O_CREAT), all_threads=True)
    return output


def end_with_parent(directory: Path) -> None:
    """End this process when the parent is gone, however it went.

    The parent is the process that made the pool: what is waited for is a pipe that only it holds open. (Under
    forkserver the operating system's parent is the fork server, which lives as long as its workers.)
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


def _join(seat: Seat) -> dict[int, dist.ProcessGroup]:
    """The group of the first n ranks for every n, by n; made once, as each costs a rendezvous of all ranks."""
    torch.set_num_threads(seat.threads)
    if seat.device == "cpu":
        _compute_in_batches()
        _keep_freed_memory()
    rank, world = (seat.launch.local_rank, seat.launch.local_world) if seat.launch else (seat.rank, seat.world)
    backend = "gloo"
    if seat.device == "cuda":
        devices = torch.cuda.device_count()
        torch.cuda.set_device(rank % devices)
        # NCCL refuses two ranks on one GPU. Tensors on the CPU need gloo in either case.
        backend = "cpu:gloo,cuda:nccl" if devices >= world else "gloo"
    if seat.launch is None or seat.launch.on_loopback:
        _use_loopback()
    meeting = {"store": seat.launch.store(host=False)} if seat.launch else {"init_method": f"file://{seat.store}"}
    dist.init_process_group(backend, **meeting, rank=seat.rank, world_size=seat.world)
    smaller = range(1, seat.world) if seat.launch is None else range(1, min(2, seat.world))
    return {**{n: dist.new_group(range(n)) for n in smaller}, seat.world: dist.group.WORLD}


def _compute_in_batches() -> None:
    """Take Linux's policy for work that only computes, for this thread and those that it starts.

    Under the default one the thread that a message wakes may preempt the sender, which holds gloo's lock of that
    connection; gloo's own thread then asks for the lock over and over until the sender is back (docs/speed.md).
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(PermissionError):  # some sandboxes forbid it; the environment in the results says what holds
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _keep_freed_memory() -> None:
    """Let glibc's malloc hand out freed memory again instead of giving it back, as torch's CUDA allocator does.

    Else a step pays for thousands of fresh pages or for none, by what happens to lie at the heap's end (docs/speed.md).
    """
    with suppress(OSError, AttributeError):  # another C library
        malloc = ctypes.CDLL(None)
        malloc.mallopt(M_TRIM_THRESHOLD, -1)
        malloc.mallopt(M_MMAP_THRESHOLD, 2**30)


def _use_loopback() -> None:
    """Let gloo talk over loopback, where the kernel's counters see all of it, and no host name need resolve."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _receive(connection: Connection) -> bytes | None:
    """The next task, or None where the parent closed its end."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


def _reply(message: bytes, groups: dict[int, dist.ProcessGroup]) -> bytes:
    """Run one task; every local of it is gone when the reply is returned."""
    group = None
    try:
        world, task, args = unpack(message)
        group = groups[world]
        return pack(Returned(task(group, *args)))
    except BaseException as error:  # noqa: BLE001 - a task that calls sys.exit has failed, too
        return pack(_raised(error, group))


def _raised(error: BaseException, group: Any = None) -> Raised:
    lines, frames = str(error).splitlines() or [""], error.__traceback__  # the first frame is this file's own
    is_usage = isinstance(error, UsageError)
    return Raised(
        error=f"{type(error).__name__}: {lines[0]}".removesuffix(": "),
        traceback="".join(traceback.format_exception(type(error), error, frames and (frames.tb_next or frames))),
        usage=str(error) if is_usage else None,
        issued=group._get_sequence_number_for_group() if is_usage and group else 0,
    )
