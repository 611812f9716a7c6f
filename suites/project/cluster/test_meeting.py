"""How launched ranks meet and part, whatever goes wrong: nothing hangs, and what a rank has to say can be read."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import pytest

from zerobench.errors import RankFailure
from zerobench.machine.launch import MEETING, Launch
from zerobench.ranks import launched
from zerobench.suites.project.cluster.test_launch import free_port
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import Program

#: Whose tasks belong to a module that every rank can name.
_PROGRAM = "from zerobench.suites.project.cluster.launched import main; raise SystemExit(main('{}'))"
_IMPATIENT = "from zerobench.machine import launch; launch.MEETING = 1.0; "
#: Seconds that two ranks may take; they wait for each other for longer.
_LIMIT = MEETING - 20


def _rank(folder: Path, rank: int, port: int, program: str) -> Program:
    """One of two ranks as MPICH's mpirun starts it; its temporary files lie in ``folder``."""
    place = {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2, "MASTER_PORT": port}
    given = {name: str(value) for name, value in place.items()}
    meeting = {"MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return Program("-c", program, cwd=folder, env={**outside(), **given, **meeting})


def _both(folder: Path, what: str) -> tuple[int | None, int | None, str, str]:
    """The codes of two ranks, and what each wrote to its standard error; they write nowhere else."""
    port = free_port()
    with ExitStack() as stack:
        ranks = [stack.enter_context(_rank(folder, rank, port, _PROGRAM.format(what))) for rank in range(2)]
        for rank in ranks:
            stack.callback(rank.kill)
        (out, first), (other_out, second) = [rank.communicate(timeout=_LIMIT) for rank in ranks]
    assert (out, other_out) == ("", "")
    assert not list(folder.glob("zerobench-*")), "files stayed behind"
    return ranks[0].returncode, ranks[1].returncode, first, second


def test_one_task_after_another(tmp_path: Path) -> None:
    """A rank that gets its next task at once is not taken for one that has lost rank 0."""
    first, second, said, other = _both(tmp_path, "works")
    assert (first, second) == (0, 0), said + other


def test_rank_0_has_no_task(tmp_path: Path) -> None:
    """An error that rank 0 makes before the first task ends the other rank soon, and quietly: rank 0 has said why."""
    first, second, said, other = _both(tmp_path, "refuses")
    assert (first, second) == (1, 0)
    assert said.strip().endswith("the folder is not there")
    assert "zerobench" not in other
    assert "Traceback" not in other


def test_rank_0_does_not_come(tmp_path: Path) -> None:
    """A rank that waits for rank 0 in vain says so in a line."""
    with _rank(tmp_path, 1, free_port(), _IMPATIENT + _PROGRAM.format("works")) as alone:
        _, said = alone.communicate(timeout=_LIMIT)
    assert alone.returncode == 1
    assert "zerobench: rank 1 did not meet the others at 127.0.0.1:" in said
    assert "Traceback" not in said


def test_the_port_is_taken() -> None:
    """Where rank 0 cannot listen at MASTER_PORT, one error names the address."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        launch = Launch(0, 2, 0, 2, "127.0.0.1", port, attempt="0", hosted=False)
        with pytest.raises(RankFailure, match=f"rank 0 did not meet the others at 127.0.0.1:{port}: "):
            launched.open_pool(2, "cpu", 1, launch)


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    """Rank 0 says which rank it was, and where to read on: what it printed and where it was."""
    first, second, said, other = _both(tmp_path, "hangs")
    assert (first, second) == (1, 1)
    assert said.startswith("rank 1 did not finish within 5 s")
    assert "is in its launcher's standard error" in said
    assert "the loader waits" in other
    assert "zerobench: rank 0 ended rank 1, which was here:" in other
    assert "in _sleep" in other


def test_a_rank_that_aborts(tmp_path: Path) -> None:
    """The last words of native code, and the stack from which it was called, are the launcher's to show."""
    first, second, said, other = _both(tmp_path, "aborts")
    assert (first, second) == (1, -6)
    assert said.startswith("rank 1 closed its pipe")
    assert "an illegal memory access" in other
    assert "in _abort" in other


def test_callers_of_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says nothing, hangs up in the middle or has another key is sent away; a rank is taken in, and may be slow."""
    monkeypatch.setattr(launched, "_GREETING", 1.0)
    silent, kept = socket.socketpair()
    with kept:
        assert launched._greet(silent, b"key") is None
    assert launched._greet(_caller(b"key"), b"key") is None
    assert launched._greet(_caller(b"another", b"3"), b"key") is None
    came = launched._greet(_caller(b"key", b"3", b"later"), b"key")
    assert came is not None
    with came[1] as connection:
        assert (came[0], connection.recv_bytes()) == (3, b"later")


def _caller(key: bytes, *words: bytes) -> socket.socket:
    """A socket on whose other side somebody proves to know ``key``, says the words with pauses, and hangs up."""
    ours, theirs = socket.socketpair()

    def call() -> None:
        with Connection(theirs.detach()) as connection, suppress(AuthenticationError, EOFError, OSError):
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
            for word in words:
                connection.send_bytes(word)
                time.sleep(1.5)

    threading.Thread(target=call, daemon=True).start()
    return ours


def test_the_listener_is_open_to_both() -> None:
    """Rank 0 can be called by an address of either kind."""
    for address in ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]:
        with launched._listen(1) as listener, socket.create_connection((address, listener.getsockname()[1]), timeout=5):
            listener.accept()[0].close()


def test_the_next_task_is_not_the_end() -> None:
    """A message that waits to be read is no sign that rank 0 is gone; that it has closed is one."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(b"x")
            assert not launched._is_over(ours)
            assert ours.recv(1) == b"x"
        assert launched._is_over(ours)
