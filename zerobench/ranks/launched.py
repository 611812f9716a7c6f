"""LaunchedPool: the ranks that a launcher started, on any number of machines, behind a pool's interface.

Every launched process runs the same command. That of rank 0 becomes the parent: it starts the worker of rank 0 beside
it, as any pool does. The others become workers themselves (:func:`follow`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from torch.distributed import DistError

from zerobench.errors import RankFailure, UsageError
from zerobench.machine.launch import MEETING, Launch
from zerobench.ranks.pool import GRACE, Pool, Worker, start_rank
from zerobench.ranks.worker import BUSY, RankSlot, serve, speak

#: In the store: the listener's port and key, or null; and, by rank, that null was read.
_LISTENER, _LEFT = "listener", "left"
#: Seconds in which a process that connects must say who it is, which takes milliseconds.
_GREETING = 10.0


class LaunchedPool(Pool):
    """A pool of ranks that were there before and cannot be started again: a fault ends every rank and later task.

    Besides the whole world it has a world of one.

    Protocol. The ranks meet at a store at MASTER_ADDR:MASTER_PORT, which this opens. With the first task rank 0 opens a
    listener and writes its port and a key to the store. The others connect, prove that they know the key as rank 0
    does, say their rank, join the process group, and serve tasks until rank 0 closes the connection. If that is before
    the reply to a task, a rank writes its stacks and ends itself. A pool that is closed before its first task, or
    cannot be, writes that there is no listener, and waits until every rank has read so, for the store goes with rank 0:
    an error in the input that only rank 0 sees ends all ranks when they have come.

    Raises:
        UsageError: as for a pool.
        RankFailure: the store cannot be opened.
    """

    recovers = False

    def __init__(self, launch: Launch, device: str = "cpu", threads: int = 1) -> None:
        self.launch = launch
        self._told = False  # whether the others know of the listener, or that there is none
        try:
            self._store = launch.store(host=True)  # kept, for all ranks meet at it
        except DistError as error:
            raise RankFailure(_unmet(launch, error)) from error
        try:
            super().__init__(launch.world, device, threads)
        except UsageError:
            self._let_go()
            raise

    @property
    def worlds(self) -> Sequence[int]:
        """One rank, and all."""
        return sorted({1, self.world})

    def _start_ranks(self, directory: Path) -> None:
        if self._told:
            raise RankFailure("the launched ranks have ended and cannot be started again; launch them anew")
        self._told = True
        key = secrets.token_bytes()
        with _listen(self.world) as listener:
            self._store.set(_LISTENER, json.dumps([listener.getsockname()[1], key.hex()]))
            self._workers.append(start_rank(RankSlot(0, self.world, self.device, self.threads, directory, self.launch)))
            self._admit(listener, key)

    def _admit(self, listener: socket.socket, key: bytes) -> None:
        """Take in the other ranks as they come."""
        end = time.monotonic() + MEETING
        while missing := {*range(self.world)} - {each.slot.rank for each in self._workers}:
            listener.settimeout(max(0.001, end - time.monotonic()))
            try:
                came = _greet(listener.accept()[0], key)
            except TimeoutError:
                raise RankFailure(
                    f"ranks {sorted(missing)} of {self.world} did not come within {MEETING:g} s"
                ) from None
            if came is not None:
                rank, connection = came
                self._workers.append(Worker(RankSlot(rank, self.world, self.device, self.threads), None, connection))
        self._workers.sort(key=lambda each: each.slot.rank)

    def _let_go(self) -> None:
        """Have the other ranks end without a task."""
        self._told = True
        self._store.set(_LISTENER, json.dumps(None))
        with suppress(DistError):  # a rank that has not come by then finds nobody
            self._store.wait([f"{_LEFT}/{rank}" for rank in range(1, self.launch.world)], timedelta(seconds=MEETING))

    def close(self) -> None:
        """End the ranks, also if they still wait for a first task."""
        if not self._told:
            self._let_go()
        super().close()


def _listen(callers: int) -> socket.socket:
    """A socket that listens at a port of the system's choice, to IPv4 and, if there is that, IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=callers, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=callers)


def _greet(caller: socket.socket, key: bytes) -> tuple[int, Connection] | None:
    """A caller's rank and its connection; None if it does not know the key, or falls silent."""
    with caller:
        caller.setblocking(True)
        connection = Connection(os.dup(caller.fileno()))
        _wait_at_most(caller, _GREETING)
        try:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            rank = int(connection.recv_bytes())
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return None
        _wait_at_most(caller, 0)
    return rank, connection


def _wait_at_most(line: socket.socket, seconds: float) -> None:
    """Let a read fail that nothing comes for so long; 0: never. It holds for a Connection on this socket, too."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def follow(launch: Launch, device: str, threads: int) -> int:
    """Serve as a rank other than 0 until rank 0 has done; the exit code.

    All that this process prints from here on goes to its standard error. The code is 1, with a line that says why,
    if rank 0 cannot be met; if it is gone in the middle of a task the process ends with code 1 and its stacks.
    """
    os.dup2(2, 1)
    speak()
    try:
        connection = _call(launch)
    except (DistError, AuthenticationError, EOFError, OSError) as error:
        print(f"zerobench: {_unmet(launch, error)}", file=sys.stderr)
        return 1
    if connection is not None:
        threading.Thread(target=_end_with_parent, args=(launch.rank, connection), daemon=True).start()
        serve(RankSlot(launch.rank, launch.world, device, threads, launch=launch), connection)
    return 0


def _call(launch: Launch) -> Connection | None:
    """The connection to rank 0; None if it has no task for anyone."""
    store = launch.store(host=False)
    listener = json.loads(store.get(_LISTENER))
    if listener is None:
        store.set(f"{_LEFT}/{launch.rank}", "")
        return None
    port, key = int(listener[0]), bytes.fromhex(listener[1])
    with socket.create_connection((launch.address, port), timeout=MEETING) as called:
        called.setblocking(True)
        connection = Connection(os.dup(called.fileno()))
        _wait_at_most(called, MEETING)
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        connection.send_bytes(str(launch.rank).encode())
        _wait_at_most(called, 0)
    return connection


def _unmet(launch: Launch, error: Exception) -> str:
    """Why the ranks did not meet."""
    why = (str(error) or type(error).__name__).splitlines()[0]
    return f"rank {launch.rank} did not meet the others at {launch.address}:{launch.port}: {why}"


def _end_with_parent(rank: int, connection: Connection) -> None:
    """End this process if the parent is gone before it has its reply, which then may never come.

    The end is looked for first: after it no task can come, so that a rank which is busy then is so with its last.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        while not (_is_over(line) and BUSY.is_set()):
            time.sleep(GRACE / 2)
    os.write(2, f"zerobench: rank 0 ended rank {rank}, which was here:\n".encode())
    faulthandler.dump_traceback(2)
    os._exit(1)


def _is_over(line: socket.socket) -> bool:
    """Whether the other side has closed; waits for that, or for a message, which is left to whom it is for."""
    try:
        return not line.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def open_pool(world: int, device: str, threads: int, launch: Launch | None) -> Pool:
    """The launched ranks if there are any, else ranks that are started here."""
    return Pool(world, device, threads) if launch is None else LaunchedPool(launch, device, threads)
