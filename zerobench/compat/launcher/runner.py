"""``deepspeed.launcher.runner``: the launcher, and the hosts of a job for scripts that read a hostfile themselves."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from zerobench.compat.launcher.resources import Resources, chosen, read_hostfile


def fetch_hostfile(hostfile_path: str | Path) -> dict[str, int] | None:
    """The number of slots of each host; None if there is no file."""
    hosts = read_hostfile(Path(hostfile_path))
    return None if hosts is None else {host: len(slots) for host, slots in hosts.items()}


def parse_inclusion_exclusion(resource_pool: dict[str, int], inclusion: str, exclusion: str) -> Resources:
    """The hosts and slots that ``--include`` or ``--exclude`` leaves of these numbers of slots."""
    return parse_resource_filter(
        {host: list(range(slots)) for host, slots in resource_pool.items()}, inclusion, exclusion
    )


def parse_resource_filter(host_info: Resources, include_str: str = "", exclude_str: str = "") -> Resources:
    """The hosts and slots that ``--include`` or ``--exclude`` leaves of these slots."""
    return chosen(host_info, include_str, exclude_str, -1, -1)


def encode_world_info(world_info: Resources) -> str:
    """Hosts and slots as JSON in base64."""
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


def launch_command(args: list[str]) -> list[str]:
    """The ``deepspeed`` command with these arguments, as one of this package."""
    return [sys.executable, "-m", "zerobench", "launch", *args]


def main(args: list[str] | None = None) -> NoReturn:
    """``zerobench launch`` with these arguments of the ``deepspeed`` command, by default the process's own."""
    sys.exit(subprocess.call(launch_command(sys.argv[1:] if args is None else args)))
