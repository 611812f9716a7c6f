"""The launcher: resources as DeepSpeed reads them, ranks, several agents, commands for hosts, and its failures."""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zerobench.compat.launcher.resources import chosen, read_hostfile
from zerobench.errors import UsageError
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_HOSTS = {"a": [0, 1], "b": [0, 1, 2]}
#: Seconds for a job of two ranks on a busy machine.
_LIMIT = 240

_SCRIPT = """
import argparse, os, sys
import deepspeed
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
deepspeed.init_distributed()
rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
print(f"rank {rank} of {world}, local {args.local_rank}, {deepspeed.__version__}", flush=True)
deepspeed.comm.barrier()
if os.environ.get("FAILS") == str(rank):
    raise ArithmeticError("on purpose")
deepspeed.comm.barrier()
deepspeed.comm.destroy_process_group()
"""


def _environment(**more: str) -> dict[str, str]:
    return {**outside(), "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **more}


def _launch(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(_SCRIPT)
    command = [sys.executable, "-m", "zerobench", "launch", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=_environment(**environment), **pipes)


def _ranks(printed: str) -> list[str]:
    return sorted(line for line in printed.splitlines() if line.startswith("rank "))


@pytest.mark.slow
def test_ranks_and_logs(tmp_path: Path) -> None:
    """Two ranks, --local_rank for the script, one line that names the engine, a log for each rank, no left-overs."""
    running = _launch(tmp_path, "--num_gpus", "2", "--save_pid", "train.py")
    out, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 0, error
    assert _ranks(out) == [f"rank {rank} of 2, local {rank}, 0.19.8+zerobench" for rank in range(2)]
    assert out.count("is zerobench's reference engine") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_a_failure_ends_all(tmp_path: Path) -> None:
    """One rank's exception ends the others, which wait in a barrier; its traceback and its rank are printed."""
    running = _launch(tmp_path, "--num_gpus", "2", "--enable_each_rank_log", "logs", "train.py", FAILS="1")
    _, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 1
    assert "rank 1 failed with exit code 1, and the other ranks were ended" in error
    assert "ArithmeticError: on purpose" in "".join(log.read_text() for log in tmp_path.rglob("stderr.log"))


@pytest.mark.slow
def test_two_agents(tmp_path: Path) -> None:
    """Two nodes, each with an agent of its own on loopback."""
    from zerobench.suites.project.cluster.test_launch import free_port

    meeting = ["--num_nodes", "2", "--num_gpus", "1", "--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    agents = [_launch(tmp_path, *meeting, "--node_rank", str(node), "train.py") for node in range(2)]
    printed = [agent.communicate(timeout=_LIMIT) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], printed
    both = _ranks("".join(out for out, _ in printed))
    assert both == [f"rank {rank} of 2, local 0, 0.19.8+zerobench" for rank in range(2)]


@pytest.mark.parametrize("launcher", ["ssh", "pdsh"])
def test_hosts_are_reached(launcher: str, tmp_path: Path) -> None:
    """Each host gets one agent, with its rank, the first host as the meeting point, and the caller's environment."""
    stub = tmp_path / "bin" / launcher
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\nfor each; do printf "%s\\n" "$each"; done > {tmp_path}/seen.$$\n')
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "hosts").write_text("one slots=2  # a comment\n\ntwo slots=2\n")
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    given = ["--hostfile", "hosts", "--launcher", launcher, "--num_gpus", "1", "train.py", "--lr", "a b"]
    running = _launch(tmp_path, *given, PATH=path, NCCL_DEBUG="INFO X")
    _, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 0, error
    seen = sorted(each.read_text().splitlines() for each in tmp_path.glob("seen.*"))
    front = [] if launcher == "ssh" else ["-S", "-R", "ssh", "-w"]
    assert [each[:-1] for each in seen] == [[*front, "one"], [*front, "two"]]
    for node, (*_, command) in enumerate(seen):
        assert "export NCCL_DEBUG='INFO X'; " in command
        assert f"cd {tmp_path}; {sys.executable} -m zerobench launch --hostfile hosts" in command
        assert command.endswith(f"--num_gpus 1 --master_addr=one --node_rank={node} train.py --lr 'a b'")


def test_hostfile(tmp_path: Path) -> None:
    """Lines 'host slots=N' and comments; no file is no hostfile; anything else is an error with its line."""
    path = tmp_path / "hosts"
    assert read_hostfile(path) is None
    path.write_text("# all\na slots=2\nb slots=3 extra\n")
    assert read_hostfile(path) == _HOSTS
    for text, message in (("a slots=2\na slots=2\n", "line 2"), ("a 2\n", "line 1"), ("\n", "names no host")):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_hostfile(path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("", "", 0, 0), _HOSTS),
        (("b", "", 0, 0), {"b": [0, 1, 2]}),
        (("b:2,0@a:1", "", 0, 0), {"a": [1], "b": [0, 2]}),
        (("", "a@b:1", 0, 0), {"b": [0, 2]}),
        (("", "", 1, 0), {"a": [0, 1]}),
        (("", "", 0, 1), {"a": [0], "b": [0]}),
    ],
)
def test_filters(options: tuple[str, str, int, int], expected: Any) -> None:
    """DeepSpeed's --include, --exclude, --num_nodes and --num_gpus."""
    assert chosen(_HOSTS, *options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("a", "b", 0, 0), "both given"),
        (("a", "", 0, 1), "do not fit"),
        (("c", "", 0, 0), r"'c' is not one of the hosts \(a, b\)"),
        (("a:7", "", 0, 0), r"has the slots \[0, 1\], not \[7\]"),
        (("a:x", "", 0, 0), "not of the form"),
        (("", "a@b", 0, 0), "no host is left"),
    ],
)
def test_filters_that_are_wrong(options: tuple[str, str, int, int], message: str) -> None:
    """One clear error."""
    with pytest.raises(UsageError, match=message):
        chosen(_HOSTS, *options)


def test_not_importable_by_default() -> None:
    """Only the launcher brings a package of this name; another one that is loaded is not replaced."""
    program = (
        "import importlib.util, sys, types; assert importlib.util.find_spec('deepspeed') is None or "
        "'zerobench' not in importlib.util.find_spec('deepspeed').origin; import zerobench; "
        "other = types.ModuleType('deepspeed'); other.__file__ = '/elsewhere'; sys.modules['deepspeed'] = other\n"
        "from zerobench.compat.activation import activate\n"
        "try: activate()\nexcept Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=_environment(), capture_output=True, text=True, check=True
    )
    assert "/elsewhere has been imported already; start the script by zerobench launch alone" in done.stdout


def test_options() -> None:
    """DeepSpeed's launcher options are all there."""
    from zerobench.compat.launcher.options import add_launch

    parser = argparse.ArgumentParser()
    add_launch(parser)
    resources = ["num_gpus", "num_nodes", "include", "exclude", "hostfile", "save_pid", "enable_each_rank_log"]
    meeting = ["master_addr", "master_port", "node_rank", "module", "no_local_rank"]
    known = {option for action in parser._actions for option in action.option_strings}
    assert {f"--{name}" for name in (*resources, *meeting)} <= known
