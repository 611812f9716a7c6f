"""LaunchedPool: the ranks that a launcher started, on any number of machines, behind a pool's interface.

Every launched process runs the same command. The process of rank 0 becomes the parent: like any pool, it starts the
worker of rank 0 as another process. The others become workers themselves (:func:`follow`).
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

#: Keys of the store: the listener's port and key, or null; and, by rank, whether null was read.
_LISTENER, _LEFT = "listener", "left"
#: Seconds in which a connecting process must identify itself; normally this takes milliseconds.
_GREETING = 10.0


class LaunchedPool(Pool):
    """A pool of ranks that already run and cannot be restarted: a fault ends every rank, and no later task can run.

    Besides the whole world it has a world of one.

    Protocol. The pool opens a store at MASTER_ADDR:MASTER_PORT. With the first task rank 0 opens a listener and writes
    its port and a key to the store. The others connect, prove that they know the key (as rank 0 does), send their rank,
    join the process group, and serve tasks until rank 0 closes the connection. If rank 0 closes it before the reply to
    a task, the rank writes its stacks and ends itself. If the pool is closed before its first task or cannot be made,
    rank 0 writes null to the store and waits until every rank has read it, because the store ends with rank 0. So if
    only rank 0 sees an error in the input, all ranks still end once they have arrived.

    Raises:
        UsageError: as for a pool.
        RankFailure: if the store cannot be opened.
    """

    recovers = False

    def __init__(self, launch: Launch, device: str = "cpu", threads: int = 1) -> None:
        self.launch = launch
        self._told = False  # whether the others know if there is a listener
        try:
            self._store = launch.store(host=True)  # kept: all ranks meet at it
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
        """Accept the other ranks as they arrive."""
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
        """End the other ranks without a task."""
        self._told = True
        self._store.set(_LISTENER, json.dumps(None))
        with suppress(DistError):  # if a rank arrives later, rank 0 is gone
            self._store.wait([f"{_LEFT}/{rank}" for rank in range(1, self.launch.world)], timedelta(seconds=MEETING))

    def close(self) -> None:
        """End the ranks, even if they still wait for a first task."""
        if not self._told:
            self._let_go()
        super().close()


def _listen(callers: int) -> socket.socket:
    """A socket that listens at a port of the system's choice, on IPv4 and, if available, IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=callers, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=callers)


def _greet(caller: socket.socket, key: bytes) -> tuple[int, Connection] | None:
    """A caller's rank and its connection; None if it does not know the key or if it stops responding."""
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
    """Make a read fail if no data arrive for ``seconds``; 0: never. It holds for a Connection on this socket too."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def follow(launch: Launch, device: str, threads: int) -> int:
    """Serve as a rank other than 0 until rank 0 is done; returns the exit code.

    All later output of this process goes to its standard error. If rank 0 cannot be reached, the code is 1, and a line
    has the reason. If rank 0 disappears in the middle of a task, the process writes its stacks and ends with code 1.
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
    """The connection to rank 0; None if it has no task."""
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
    """The reason if the ranks did not meet."""
    why = (str(error) or type(error).__name__).splitlines()[0]
    return f"rank {launch.rank} did not meet the others at {launch.address}:{launch.port}: {why}"


def _end_with_parent(rank: int, connection: Connection) -> None:
    """End this process if the parent is gone before it has its reply, which then may never come.

    The parent's end is checked first. No task comes after it, so if the rank is busy then, it runs its last task.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        while not (_is_over(line) and BUSY.is_set()):
            time.sleep(GRACE / 2)
    os.write(2, f"zerobench: rank 0 ended rank {rank}, which was here:\n".encode())
    faulthandler.dump_traceback(2)
    os._exit(1)


def _is_over(line: socket.socket) -> bool:
    """Whether the other side has closed; waits for that or for a message, which stays in the socket."""
    try:
        return not line.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def open_pool(world: int, device: str, threads: int, launch: Launch | None) -> Pool:
    """The launched ranks if there are any, otherwise ranks that are started here."""
    return Pool(world, device, threads) if launch is None else LaunchedPool(launch, device, threads)
