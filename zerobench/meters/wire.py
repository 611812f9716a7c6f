"""Wire: the bytes that the kernel saw: those on this machine's loopback device, and those that processes wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]

_COUNTERS = Path("/proc/net/dev")
_PASSED = Path("/proc/self/io")
_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


@dataclass
class Wire:
    """Bytes received on ``lo``, TCP/IP headers and acknowledgements included, and those that the processes wrote to the
    default store if it is a file, which no device sees; None if they are not known.

    Those on ``lo`` include every process of the machine.

    ``written`` are the bytes that this process passed to ``write`` and its like, to a file or a socket; None if they
    are not known. gloo sends with ``writev``, so they include its messages, and no headers of TCP/IP. Memory that
    processes share is in neither number.
    """

    bytes: int | None = None
    written: int | None = None


@contextmanager
def crossing(group: dist.ProcessGroup) -> Iterator[Wire]:
    """Count the bytes on loopback in the block, from the arrival of all ranks to the exit of all; a collective.

    If the ranks do not share one loopback device, the bytes are not known.
    """
    wire, shared = Wire(), _share_a_device(group)
    dist.barrier(group)
    before, written = _received(), written_so_far()
    dist.barrier(group)  # no rank starts before all have read the counter
    yield wire
    dist.barrier(group)
    after, wire.written = _received(), _difference(written_so_far(), written)
    dist.barrier(group)  # no rank continues before that either
    wire.bytes = _difference(after, before) if shared else None


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _share_a_device(group: dist.ProcessGroup) -> bool:
    devices: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(devices, _device(), group=group)
    return None not in devices and len(set(devices)) == 1


def _device() -> str | None:
    """The identity of this process's loopback device: the machine's boot, and the network namespace."""
    try:
        return _BOOT.read_text(encoding="ascii") + str(_NETWORK.readlink())
    except OSError:
        return None


def _received() -> int | None:
    """``lo``'s first counter, and the store's: a line of the file is ``name: received_bytes packets ...``."""
    lines = _COUNTERS.read_text().splitlines() if _COUNTERS.exists() else []
    counters = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return int(counters["lo"][0]) + _stored() if "lo" in counters else None


def read_so_far() -> int | None:
    """The bytes that this process has taken from ``read`` and its like, of files and sockets; None if they are not
    known. gloo receives with ``read``, and a map of a file reads without."""
    return _passed("rchar")


def written_so_far() -> int | None:
    """The bytes that this process has given to ``write`` and its like; None if they are not known."""
    return _passed("wchar")


def _passed(name: str) -> int | None:
    """This process's counter of that name: a line of the file is ``name: number``."""
    try:
        lines = _PASSED.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return int(dict(line.split(":") for line in lines)[name])


def _stored() -> int:
    """Bytes of the default store's file, to which each value is appended; 0 if the store is a server's."""
    store: Any = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return Path(store.path).stat().st_size if isinstance(store, FileStore) else 0  # type: ignore[attr-defined]
