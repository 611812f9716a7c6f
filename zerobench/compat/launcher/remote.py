"""Several nodes: one agent on each host, started by pdsh or ssh."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from zerobench.compat.launcher.resources import Resources
from zerobench.errors import UsageError

#: Variables that the hosts get from this one, by their beginning, as DeepSpeed exports them.
_EXPORTED = ("NCCL", "PYTHON", "MV2", "UCX", "OMP", "DS_", "ZEROBENCH", "HF_")


def run_remote(given: argparse.Namespace, hosts: Resources, options: Sequence[str]) -> int:
    """Start an agent on each host and wait for all; returns the first exit code that is not 0.

    Args:
        given: the options of ``zerobench launch``.
        hosts: the hosts and their slots.
        options: the options for each agent, without ``--node_rank`` and the script.

    Raises:
        UsageError: the launcher's command is not there.
    """
    script = [given.script, *given.arguments]
    front = [] if given.venv_script is None else [f". {shlex.quote(given.venv_script)}"]
    agents = ["; ".join([*front, _agent([*options, f"--node_rank={node}", *script])]) for node in range(len(hosts))]
    commands = [_reaching(given, host, agent) for host, agent in zip(hosts, agents, strict=True)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [subprocess.Popen(command) for command in commands]
        return _first_failure(running)
    except FileNotFoundError:
        message = f"{given.launcher} is not installed; choose another --launcher, or start each node by --node_rank"
        raise UsageError(message) from None
    finally:
        for process in running:
            process.terminate()


def _first_failure(running: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; as soon as one fails, stop waiting for the others."""
    waiting = list(running)
    while waiting:
        for process in list(waiting):
            try:
                code = process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            waiting.remove(process)
            if code:
                return code
    return 0


def _agent(options: Sequence[str]) -> str:
    """The shell command of one host's agent."""
    exported = {name: value for name, value in os.environ.items() if name.startswith(_EXPORTED)} | _of_file()
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in sorted(exported.items()))
    start = shlex.join([sys.executable, "-m", "zerobench", "launch", *options])
    return f"{exports}cd {shlex.quote(str(Path.cwd()))}; {start}"


def _of_file() -> dict[str, str]:
    """The variables of ``.deepspeed_env``, or of the name in DS_ENV_FILE, at home and here: lines NAME=VALUE.

    Raises:
        UsageError: a line has another form.
    """
    found: dict[str, str] = {}
    for folder in (Path.home(), Path()):
        file = folder / os.environ.get("DS_ENV_FILE", ".deepspeed_env")
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
            name, equals, value = line.strip().partition("=")
            if not equals and name:
                raise UsageError(f"{file}: {line!r} is not of the form NAME=VALUE")
            found |= {name: value} if name else {}
    return found


def _reaching(given: argparse.Namespace, host: str, command: str) -> list[str]:
    """The command that runs a shell command on a host."""
    extra = shlex.split(given.launcher_args)
    if given.launcher == "ssh":
        port = [] if given.ssh_port is None else ["-p", str(given.ssh_port)]
        return ["ssh", *extra, *port, host, command]
    if given.ssh_port is not None:
        os.environ["PDSH_SSH_ARGS_APPEND"] = f"-p {given.ssh_port}"
    return ["pdsh", "-S", "-R", "ssh", *extra, "-w", host, command]
