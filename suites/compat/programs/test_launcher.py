"""The launcher: resources as DeepSpeed reads them, ranks, several agents, commands for hosts, and its failures."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from zerobench.compat.launcher import agent
from zerobench.compat.launcher.cores import parse_cores, share_of_rank
from zerobench.compat.launcher.options import add_launch
from zerobench.compat.launcher.resources import chosen, read_hostfile
from zerobench.compat.launcher.variables import add_variables
from zerobench.compat.patches import accelerate_launch
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
print("devices", os.environ["CUDA_VISIBLE_DEVICES"])
deepspeed.comm.barrier()
if os.environ.get("FAILS") == str(rank):
    if "CODE" in os.environ:
        os._exit(int(os.environ["CODE"]))
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
    assert out.count("devices 0,1") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_a_module_without_local_rank(tmp_path: Path) -> None:
    """--module starts a module by its name, and --no_local_rank leaves the script's arguments as they are."""
    options = ["--num_gpus", "2", "--no_local_rank", "--module", "train"]
    running = _launch(tmp_path, *options, PYTHONPATH=f"{tmp_path}:{ROOT}")
    out, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 0, error
    assert _ranks(out) == [f"rank {rank} of 2, local -1, 0.19.8+zerobench" for rank in range(2)]


@pytest.mark.slow
def test_a_failure_ends_all(tmp_path: Path) -> None:
    """One rank's failure ends the others, which wait in a barrier; its traceback, rank and exit code are passed on."""
    running = _launch(tmp_path, "--num_gpus", "2", "--enable_each_rank_log", "logs", "train.py", FAILS="1")
    _, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 1
    assert "rank 1 failed with exit code 1, and the other ranks were ended" in error
    assert "ArithmeticError: on purpose" in "".join(log.read_text() for log in tmp_path.rglob("stderr.log"))
    running = _launch(tmp_path, "--num_gpus", "2", "train.py", FAILS="0", CODE="7")
    running.communicate(timeout=_LIMIT)
    assert running.returncode == 7  # by which a queue knows whether to start the job again


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
    (tmp_path / ".deepspeed_env").write_text("FABRIC=ib 0\n")
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    given = ["--hostfile", "hosts", "--launcher", launcher, "--venv_script", "env", "--num_gpus", "1"]
    given += ["train.py", "--lr", "a b"]
    running = _launch(tmp_path, *given, PATH=path, NCCL_DEBUG="INFO X")
    _, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 0, error
    seen = sorted(each.read_text().splitlines() for each in tmp_path.glob("seen.*"))
    front = [] if launcher == "ssh" else ["-S", "-R", "ssh", "-w"]
    assert [each[:-1] for each in seen] == [[*front, "one"], [*front, "two"]]
    for node, (*_, command) in enumerate(seen):
        assert command.startswith(". env; export ")
        assert "export FABRIC='ib 0'; " in command
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


#: The options of ``deepspeed --help``, 0.19.8.
_DEEPSPEEDS = frozenset(
    [
        *("-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--num_nodes", "--num_gpus", "--num_accelerators"),
        *("--master_port", "--master_addr", "--node_rank", "--launcher", "--launcher_args", "--module", "--no_python"),
        *("--no_local_rank", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid", "--enable_each_rank_log"),
        *("--autotuning", "--bind_cores_to_rank", "--bind_core_list", "--ssh_port", "--venv_script", "--log_level"),
        *("-q", "--quiet"),
    ]
)


def test_options() -> None:
    """Each option of DeepSpeed's launcher is known."""
    parser = argparse.ArgumentParser()
    add_launch(parser)
    assert {option for action in parser._actions for option in action.option_strings} >= _DEEPSPEEDS


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (["--launcher", "OpenMPI"], "'OpenMPI' is not offered; start the ranks by their own command, as in: mpirun"),
        (["--launcher", "slurm"], "as in: srun -n RANKS python -m zerobench.compat SCRIPT"),
        (["--autotuning", "run"], "DeepSpeed's autotuner is not offered"),
    ],
)
def test_refused_options(option: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One error that says what to do."""
    parser = argparse.ArgumentParser()
    add_launch(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([*option, "train.py"])
    assert reason in capsys.readouterr().err


def test_signal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A signal to the launcher, as by Ctrl-C or a scheduler, is one line and DeepSpeed's exit code."""

    def received(_: list[str]) -> None:
        raise SignalException("", signal.SIGTERM)

    monkeypatch.setattr("torch.distributed.run.main", received)
    assert agent._run([]) == 1
    assert capsys.readouterr().err == "zerobench launch: received SIGTERM, and the ranks were ended\n"


def test_children_of_a_command(tmp_path: Path) -> None:
    """Each Python of a program has the stand-in, the changes for CPU ranks, and the user's own ``sitecustomize``."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user/sitecustomize.py").write_text("import sys\nsys.own = 1\n")
    (tmp_path / "rank.py").write_text(
        "import sys\nfrom importlib.util import find_spec\n"
        "print([type(each).__name__ for each in sys.meta_path][:1], sys.own, find_spec('deepspeed').origin)\n"
    )
    (tmp_path / "job.sh").write_text(f"{sys.executable} rank.py\n")
    command = [sys.executable, "-m", "zerobench.compat", "--command", "sh", "job.sh"]
    env = _environment(PYTHONPATH=f"{ROOT}:{tmp_path / 'user'}")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['PatchesOnImport'] 1 ")
    assert "compat/site/deepspeed" in done.stdout


def test_deepspeeds_own_runner(tmp_path: Path) -> None:
    """``python -m deepspeed.launcher.runner`` in a process that has the stand-in is zerobench launch, with its code."""
    command = [
        sys.executable,
        "-m",
        "zerobench.compat",
        "-m",
        "deepspeed.launcher.runner",
        "--autotuning",
        "run",
        "x.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--autotuning" in done.stderr


def test_commands(tmp_path: Path) -> None:
    """A shell script that calls ``deepspeed`` and ``ds_report`` runs unmodified; a script or program that is not there
    is one line."""
    (tmp_path / "job.sh").write_text("ds_report\nexec deepspeed --num_gpus 2 absent.py --deepspeed\n")
    for arguments, code, printed in (
        (["--command", "sh", "job.sh"], 2, "zerobench: there is no script 'absent.py'; give a file, or a module with"),
        (["--command", "absent"], 127, "zerobench: 'absent' did not start: No such file or directory\n"),
        (["absent.py"], 2, "zerobench: there is no script 'absent.py'; give a file, a module with -m, or a program"),
    ):
        command = [sys.executable, "-m", "zerobench.compat", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.startswith(printed), done.stderr.count("\n")) == (code, True, 1)
        assert ("0.19.8+zerobench, zerobench's reference engine" in done.stdout) == ("job.sh" in arguments)


class _Launched:
    """The arguments that accelerate's launcher parses from a command line."""

    def __init__(self, script: str, *given: str, module: bool = False, no_python: bool = False) -> None:
        self.training_script, self.training_script_args = script, [*given]
        self.module, self.no_python = module, no_python

    @property
    def started(self) -> list[str]:
        return [*(["-m"] if self.module else []), self.training_script, *self.training_script_args]


@pytest.mark.parametrize(
    ("given", "started"),
    [
        (_Launched("train.py", "--x"), ["-m", "zerobench.compat", "train.py", "--x"]),
        (_Launched("train", "--x", module=True), ["-m", "zerobench.compat", "-m", "train", "--x"]),
        (_Launched("zerobench.compat", "train.py", module=True), ["-m", "zerobench.compat", "train.py"]),
        (_Launched("./train.sh", no_python=True), ["./train.sh"]),
    ],
)
def test_ranks_of_accelerate_launch(given: _Launched, started: list[str]) -> None:
    """They run the script on the engine, once; several machines get this launcher in place of DeepSpeed's command."""
    module: Any = types.ModuleType("accelerate.utils.launch")
    module.prepare_deepspeed_cmd_env = lambda args: (None, {"A": "1"})
    accelerate_launch.PATCHES[module.__name__](module)
    assert module.prepare_deepspeed_cmd_env(given) == (None, {"A": "1"})
    assert given.started == started
    module.prepare_deepspeed_cmd_env = lambda args: (["deepspeed", "--hostfile", "h", "train.py"], {})
    accelerate_launch.PATCHES[module.__name__](module)
    expected = [sys.executable, "-m", "zerobench", "launch", "--hostfile", "h", "train.py"]
    assert module.prepare_deepspeed_cmd_env(given) == (expected, {})


def test_cores() -> None:
    """Lists as DeepSpeed writes them, shares of ranks, and one error for each fault."""
    allowed = sorted(os.sched_getaffinity(0))
    assert parse_cores(None) == allowed
    assert parse_cores(f"{allowed[0]}-{allowed[0]}") == allowed[:1]
    assert [share_of_rank([1, 3, 4, 5, 7], rank, 2) for rank in range(2)] == [[1, 3], [4, 5]]
    with pytest.raises(UsageError, match="'a-b' is not of the form 1,3-5"):
        parse_cores("a-b")
    for wrong in ("999999", f"{allowed[0]},{allowed[0]}", "5-4"):
        with pytest.raises(UsageError, match="must name cores among"):
            parse_cores(wrong)
    with pytest.raises(UsageError, match="needs a core for each of the 3 ranks, and there are 2"):
        share_of_rank([0, 1], 0, 3)


@pytest.mark.slow
def test_a_program_and_bound_cores(tmp_path: Path) -> None:
    """--no_python starts a program, with the stand-in on its path; --bind_cores_to_rank binds a script's ranks."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} train.py "$@"\n')
    program.chmod(0o755)
    running = _launch(tmp_path, "--num_gpus", "1", "--no_python", str(program))
    out, error = running.communicate(timeout=_LIMIT)
    assert running.returncode == 0, error
    assert _ranks(out) == ["rank 0 of 1, local 0, 0.19.8+zerobench"]
    (tmp_path / "cores.py").write_text("import os; print('cores', sorted(os.sched_getaffinity(0)))")
    core = str(max(os.sched_getaffinity(0)))
    running = _launch(tmp_path, "--num_gpus", "1", "--bind_cores_to_rank", "--bind_core_list", core, "cores.py")
    out, error = running.communicate(timeout=_LIMIT)
    assert f"cores [{core}]" in out, error


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's names of the ranks and hosts, from torchrun's; a launcher's own stay."""
    given = {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "3", "CROSS_SIZE": "4"}
    monkeypatch.setattr(os, "environ", given)
    add_variables()
    assert (given["LOCAL_SIZE"], given["CROSS_RANK"], given["CROSS_SIZE"]) == ("2", "1", "4")
