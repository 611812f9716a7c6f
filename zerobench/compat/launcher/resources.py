"""Resources: the hosts of a job and the slots on each, from a hostfile and DeepSpeed's filters."""

from __future__ import annotations

import re
from pathlib import Path

from zerobench.errors import UsageError

#: The slots on each host, in the hostfile's order.
Resources = dict[str, list[int]]
LOCAL = "localhost"


def read_hostfile(path: Path) -> Resources | None:
    """The hosts of a file with lines ``host slots=N``; None if there is no file.

    Raises:
        UsageError: a line has another form, or a host is there twice.
    """
    if not path.is_file():
        return None
    hosts: Resources = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        bare = line.partition("#")[0].strip()
        found = re.fullmatch(r"(\S+)\s+slots=(\d+).*", bare)
        if bare and (found is None or found[1] in hosts):
            raise UsageError(
                f"{path}, line {number}: {line.strip()!r} is not of the form 'host slots=N', each host once"
            )
        if found is not None:
            hosts[found[1]] = list(range(int(found[2])))
    if not hosts:
        raise UsageError(f"{path} names no host; write a line 'host slots=N' for each")
    return hosts


def chosen(hosts: Resources, include: str, exclude: str, nodes: int, per_node: int) -> Resources:
    """The hosts and slots that the options leave.

    Raises:
        UsageError: options contradict each other, name what is not there, or leave nothing.
    """
    if include and exclude:
        raise UsageError("--include and --exclude were both given; give one")
    if (include or exclude) and (nodes > 0 or per_node > 0):
        raise UsageError("--include and --exclude choose hosts and slots, so --num_nodes and --num_gpus do not fit")
    named = {host: slots or hosts[host] for host, slots in _parsed(include or exclude, hosts).items()}
    if include:
        hosts = {host: named[host] for host in hosts if host in named}
    elif exclude:
        left = {host: [slot for slot in slots if slot not in named.get(host, ())] for host, slots in hosts.items()}
        hosts = {host: slots for host, slots in left.items() if slots}
    if nodes > 0:
        hosts = dict(list(hosts.items())[:nodes])
    if per_node > 0:
        hosts = {host: list(range(per_node)) for host in hosts}
    if not hosts:
        raise UsageError("no host is left; change --include, --exclude or the hostfile")
    return hosts


def _parsed(text: str, hosts: Resources) -> Resources:
    """``h1@h2:0,2`` as hosts and their slots; none stands for all."""
    found: Resources = {}
    for part in filter(None, text.split("@")):
        host, _, slots = part.partition(":")
        numbers = [int(slot) for slot in slots.split(",") if slot.isdecimal()]
        if host not in hosts or len(numbers) != len(list(filter(None, slots.split(",")))):
            known = ", ".join(hosts)
            raise UsageError(f"{part!r} is not one of the hosts ({known}), or not of the form host:0,2")
        missing = set(numbers) - set(hosts[host])
        if missing:
            raise UsageError(f"host {host!r} has the slots {hosts[host]}, not {sorted(missing)}")
        found[host] = sorted({*found.get(host, []), *numbers})
    return found
