"""``zerobench launch``: one node here, or an agent on each host."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from zerobench.compat.launcher.agent import run_node
from zerobench.compat.launcher.remote import run_remote
from zerobench.compat.launcher.resources import LOCAL, Resources, chosen, read_hostfile
from zerobench.errors import UsageError


def execute(given: argparse.Namespace, own: list[str]) -> int:
    """Run the command; returns the exit code of the job.

    Args:
        given: the parsed options.
        own: the arguments as they were given, without the script and what follows it.

    Raises:
        UsageError: the options do not fit each other or the hostfile.
    """
    if given.module and given.no_python:
        raise UsageError("--module and --no_python were both given; a module needs Python")
    if not (given.module or given.no_python) and not Path(given.script).is_file():
        raise UsageError(f"there is no script {given.script!r}; give a file, or a module with --module")
    hostfile = read_hostfile(Path(given.hostfile))
    if given.node_rank >= 0 or given.no_ssh:
        return _one_of_several(given, hostfile)
    hosts = chosen(
        hostfile or {LOCAL: _local_slots(given.include)}, given.include, given.exclude, given.num_nodes, given.num_gpus
    )
    if list(hosts) == [LOCAL] or (len(hosts) == 1 and hostfile is None and not given.force_multi):
        return run_node(given, next(iter(hosts.values())), 1, 0, LOCAL)
    address = given.master_addr or next(iter(hosts))
    return run_remote(given, hosts, [*own, f"--master_addr={address}"])


def _one_of_several(given: argparse.Namespace, hostfile: Resources | None) -> int:
    """The agent of one node, whose rank and meeting point were given."""
    if hostfile is None:
        if given.num_nodes < 1 or not given.master_addr:
            raise UsageError("--node_rank without a hostfile needs --num_nodes and --master_addr")
        slots = list(range(given.num_gpus)) if given.num_gpus else _local_slots()
        return run_node(given, slots, given.num_nodes, max(0, given.node_rank), given.master_addr)
    hosts = chosen(hostfile, given.include, given.exclude, given.num_nodes, given.num_gpus)
    if given.node_rank >= len(hosts):
        raise UsageError(f"--node_rank {given.node_rank} is not below {len(hosts)}, the number of hosts")
    name = list(hosts)[max(0, given.node_rank)]
    return run_node(given, hosts[name], len(hosts), max(0, given.node_rank), given.master_addr or next(iter(hosts)))


def _local_slots(include: str = "") -> list[int]:
    """The GPUs of this machine; without one, ranks on the CPU: two, or as many as ``include`` counts up to."""
    import torch

    wanted = [int(slot) for slot in re.findall(r"\d+", include.partition(":")[2])]
    return list(range(torch.cuda.device_count() or max([1, *wanted]) + 1))
