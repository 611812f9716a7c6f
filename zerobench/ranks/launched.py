"""LaunchedPool: the ranks that a launcher started, on any number of machines, behind a pool's interface.

Every launched process runs the same command. That of rank 0 becomes the parent: it starts the worker of rank 0 beside
it, as any pool does, and opens a door. The others become workers themselves (:func:`follow`): they learn of the door
from the store at MASTER_ADDR:MASTER_PORT, connect, join the process group, and serve tasks until the parent closes the
connection.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from zerobench.errors import RankFailure
from zerobench.ranks.launch import MEETING, Launch
from zerobench.ranks.pool import GRACE, Pool, Worker, seat
from zerobench.ranks.worker import BUSY, Seat, serve

_DOOR = "door"


class LaunchedPool(Pool):
    """A pool of ranks that were there before and cannot be started again: a fault ends every rank and later task.

    Besides the whole world it has a world of one.

    Raises:
        UsageError: as for a pool.
    """

    recovers = False

    def __init__(self, launch: Launch, device: str = "cpu", threads: int = 1) -> None:
        super().__init__(launch.world, device, threads)
        self.launch = launch
        self._started = False

    @property
    def worlds(self) -> Sequence[int]:
        """One rank, and all."""
        return sorted({1, self.world})

    def _seat_all(self, directory: Path) -> None:
        if self._started:
            raise RankFailure("the launched ranks have ended and cannot be started again; launch them anew")
        self._started = True
        key = secrets.token_bytes()
        with socket.create_server(("", 0), backlog=self.world) as door:
            self._store = self.launch.store(host=True)  # kept, for all ranks meet at it
            self._store.set(_DOOR, json.dumps([door.getsockname()[1], key.hex()]))
            self._workers.append(seat(Seat(0, self.world, self.device, self.threads, directory, self.launch)))
            self._workers += self._admit(door, key, directory)

    def _admit(self, door: socket.socket, key: bytes, directory: Path) -> list[Worker]:
        """The other ranks, as they come."""
        found: dict[int, Worker] = {}
        end = time.monotonic() + MEETING
        while len(found) < self.world - 1:
            door.settimeout(max(0.001, end - time.monotonic()))
            try:
                connection = _greet(door.accept()[0], key)
            except TimeoutError:
                missing = sorted({*range(1, self.world)} - found.keys())
                raise RankFailure(f"ranks {missing} of {self.world} did not come within {MEETING:g} s") from None
            if connection is not None:
                rank = int(connection.recv_bytes())
                found[rank] = Worker(Seat(rank, self.world, self.device, self.threads, directory), None, connection)
        return [found[rank] for rank in sorted(found)]


def _greet(caller: socket.socket, key: bytes) -> Connection | None:
    """The connection to a caller that knows the key; None where it does not."""
    caller.setblocking(True)
    connection = Connection(caller.detach())
    try:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
    except (AuthenticationError, EOFError, OSError):
        connection.close()
        return None
    return connection


def follow(launch: Launch, device: str, threads: int) -> int:
    """Serve as a rank other than 0 until rank 0 has done; the exit code.

    The process ends with code 1 where rank 0 is gone in the middle of a task.
    """
    port, key = json.loads(launch.store(host=False).get(_DOOR))
    called = socket.create_connection((launch.address, port), timeout=MEETING)
    called.setblocking(True)
    connection = Connection(called.detach())
    answer_challenge(connection, bytes.fromhex(key))
    deliver_challenge(connection, bytes.fromhex(key))
    connection.send_bytes(str(launch.rank).encode())
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="zerobench-") as directory:
        serve(Seat(launch.rank, launch.world, device, threads, Path(directory), launch), connection)
    return 0


def _end_with_parent(connection: Connection) -> None:
    """End this process where the connection breaks while a task is running, which then may never return."""
    while True:
        time.sleep(GRACE / 2)
        if BUSY.is_set() and connection.poll():
            os._exit(1)


def pool(world: int, device: str, threads: int, launch: Launch | None) -> Pool:
    """The launched ranks where there are any, else ranks that are started here."""
    return Pool(world, device, threads) if launch is None else LaunchedPool(launch, device, threads)
