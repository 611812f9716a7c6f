"""Ranks that a launcher has started, as on several machines: two of torchrun's agents on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from zerobench.errors import UsageError
from zerobench.machine import gpu
from zerobench.machine.launch import MEETING, Launch
from zerobench.results import schema
from zerobench.subjects import deepspeed
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import Program

_MEETING = {"MASTER_ADDR": "node1", "MASTER_PORT": "1234"}
#: A node's rank has all its cores, but here two share them: waiting threads must leave a core to the other rank.
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE"}
_SMALL = ("--model", "nano", "--steps", "2", "--stages", "2")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def report(text: str) -> dict[str, Any]:
    """The results of a run on two ranks; the run writes nothing else into the directory."""
    value: dict[str, Any] = json.loads(text)
    assert schema.flaw(value) == ""
    assert value["environment"]["world"] == value["settings"]["ranks"] == 2
    return value


def _agents(tmp_path: Path, *arguments: str) -> list[tuple[int | None, str, str]]:
    """Exit code, output and errors of both of torchrun's agents, each in a folder of its own.

    The agents end earlier than ranks that wait for each other in vain.
    """
    port, begin = free_port(), time.monotonic()
    with ExitStack() as stack:
        agents = [stack.enter_context(_agent(tmp_path / f"node{node}", node, port, *arguments)) for node in range(2)]
        for agent in agents:
            stack.callback(agent.kill)
        outputs = [agent.communicate(timeout=begin + MEETING - time.monotonic()) for agent in agents]
    return [(agent.returncode, *output) for agent, output in zip(agents, outputs, strict=True)]


def _agent(folder: Path, node: int, port: int, *arguments: str) -> Program:
    """It is forked; the rank that it starts is an interpreter of its own."""
    folder.mkdir()
    command = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return Program(*command, "-m", *arguments, cwd=folder, env={**outside(), **_QUIET, "PYTHONPATH": str(ROOT)})


def test_run_on_two_nodes(tmp_path: Path) -> None:
    """The launched ranks do the work, bit for bit; only rank 0 writes and prints."""
    first, second = _agents(tmp_path, "zerobench", "run", *_SMALL, "--subjects", "reference,torch-ddp", "--json")
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    value = report(first[1])
    assert value["cases"][0]["judgement"]["bitwise"]
    assert sorted(path.name for path in (tmp_path / "node0" / "zerobench-report").iterdir()) == [
        "report.html",
        "report.md",
        "results.json",
    ]
    assert second[1] == ""
    assert not list((tmp_path / "node1").iterdir())


@pytest.mark.slow
def test_bench_on_two_nodes(tmp_path: Path) -> None:
    """The benchmark suites use the launched ranks as well."""
    tests = [str(ROOT / "suites" / "bench" / "test_collectives.py")]
    chosen = ["-k", "65536", "--quick", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    first, second = _agents(tmp_path, "pytest", *tests, *chosen, f"--benchmark-json={tmp_path / 'bench.json'}")
    assert (first[0], second[0]) == (0, 0), first[1] + second[2]
    value = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["zerobench"]
    assert {each["world"] for each in value["collectives"]} == {value["environment"]["world"]} == {2}
    assert second[1] == ""


def test_input_that_rank_0_refuses(tmp_path: Path) -> None:
    """If only rank 0 can see a fault of the input, all ranks end after they connect; only rank 0 prints it."""
    (tmp_path / "file").touch()
    first, second = _agents(tmp_path, "zerobench", "run", *_SMALL, "--out", str(tmp_path / "file"))
    assert first[2].count("is not a directory") == 1
    assert "is not a directory" not in second[2]


def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    """Rank 1 is killed in the second step: both agents end with an error, soon, and rank 0 names the rank."""
    first, second = _agents(
        tmp_path, "zerobench", "run", *_SMALL, "--subjects", "zerobench.suites.project.cli.broken:Dies"
    )
    assert first[0] != 0
    assert second[0] != 0
    assert "zerobench: rank 1 closed its pipe" in first[2]


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a shell in an allocation: srun has not started it
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}, None),  # srun --pty bash
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 8, 1, 2)),
        (
            {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "2", "SLURM_NODEID": "1",
             "SLURM_STEP_TASKS_PER_NODE": "3(x2),1"},
            (5, 7, 2, 3),
        ),
        (  # the last host has fewer ranks than the first; under --mpi=pmi2 there are names of PMI's, too
            {"SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "2",
             "SLURM_STEP_TASKS_PER_NODE": "3(x2),1", "PMI_RANK": "6", "PMI_SIZE": "7"},
            (6, 7, 0, 1),
        ),
        (  # MPICH's mpirun in an allocation of Slurm's starts its proxies by srun, one to a host
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
             "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1",
             "MPI_LOCALNRANKS": "2"},
            (1, 4, 1, 2),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
             "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            (1, 2, 1, 2),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, (1, 2, 0, 1)),
    ],
)  # fmt: skip
def test_launchers(environment: dict[str, str], place: tuple[int, ...] | None) -> None:
    """A process's rank and world, as each launcher gives them."""
    launch = Launch.seen(environment | _MEETING)
    assert (launch and (launch.rank, launch.world, launch.local_rank, launch.local_world)) == place


def test_nowhere_to_meet() -> None:
    """Without an address of rank 0 no run can start."""
    with pytest.raises(UsageError, match="started by srun, but MASTER_ADDR and MASTER_PORT do not say where rank 0 is"):
        Launch.seen({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"})


def test_ranks_of_a_launch_are_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun gives each rank a session; a process with another meeting address, or none, is another GPU user."""
    told: list[dict[str, str]] = [_MEETING, {**_MEETING, "MASTER_PORT": "1235"}, {}]
    for name, value in _MEETING.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        sleepers = [
            stack.enter_context(subprocess.Popen(["/bin/sleep", "60"], env=env, start_new_session=True)) for env in told
        ]
        for sleeper in sleepers:
            stack.callback(sleeper.kill)
        for sleeper in sleepers[:2]:  # Linux shows a program's environment a moment after its start
            while not Path(f"/proc/{sleeper.pid}/environ").read_bytes():
                time.sleep(0.01)
        pids = [str(sleeper.pid) for sleeper in sleepers]
        monkeypatch.setattr(gpu, "lines", lambda *command: [*pids, str(os.getpid())])
        assert gpu._other_processes() == 2


@pytest.mark.parametrize(("device", "number"), [("cuda", "1"), ("cpu", "0")])
def test_deepspeed_is_told_the_gpu(monkeypatch: pytest.MonkeyPatch, device: str, number: str) -> None:
    """Not the global rank, nor the local one, as a host may have more ranks than GPUs; Open MPI's name agrees."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    deepspeed._tell_device(device)
    assert os.environ["LOCAL_RANK"] == os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] == number
