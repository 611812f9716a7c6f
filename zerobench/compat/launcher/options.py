"""The options of DeepSpeed's launcher."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add DeepSpeed's options, the script and its arguments."""
    parser.description = (
        "Starts a DeepSpeed script on the reference engine, a process for each rank, with the options of DeepSpeed's "
        "launcher. The exit code is the script's."
    )
    _add_resources(parser)
    _add_meeting(parser)
    _add_others(parser)
    add = parser.add_argument
    add("--module", action="store_true", help="SCRIPT is a module, as for python -m")
    add("--no_local_rank", action="store_true", help="do not pass --local_rank=N to the script")
    add("--no_python", action="store_true", help="SCRIPT is a program of its own, not for Python")
    add("--save_pid", action="store_true", help="write process ids to PID.deepspeed in /tmp while the job runs")
    add("--enable_each_rank_log", type=Path, metavar="DIR", help="write each rank's output to a file in DIR")
    add("script", metavar="SCRIPT", help="the training script")
    add("arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's arguments")


def _add_resources(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("resources").add_argument
    add("-H", "--hostfile", default="/job/hostfile", metavar="FILE", help="lines of the form: host slots=N")
    add("-i", "--include", default="", metavar="H1@H2:0,2", help="these hosts and slots only")
    add("-e", "--exclude", default="", metavar="H1@H2:0,2", help="all but these")
    add("--num_nodes", type=int, default=0, metavar="N", help="the first N hosts")
    add("--num_gpus", "--num_accelerators", type=int, default=0, metavar="N", help="ranks on each host")


def _add_meeting(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("several nodes").add_argument
    add("--master_addr", default="", metavar="HOST", help="the host of rank 0; default: the first one")
    add("--master_port", type=int, default=0, metavar="PORT", help="default: a free one, or 29500 for several nodes")
    add("--node_rank", type=int, default=-1, metavar="N", help="start this node only; the others are started likewise")
    add("--launcher", type=_launcher, default="pdsh", metavar="{pdsh,ssh}", help="reaches the hosts; default: pdsh")
    add("--launcher_args", default="", metavar="ARGS", help="arguments of that command")
    add("--ssh_port", type=int, metavar="PORT", help="of ssh")
    add("--force_multi", action="store_true", help="reach a single host by the launcher, too")
    add("--no_ssh", action="store_true", help="start one node, as with --node_rank")
    add("--venv_script", metavar="FILE", help="a script that each host's shell reads before it starts the agent")


def _add_others(parser: argparse.ArgumentParser) -> None:
    """Cores, and options that change nothing or are refused."""
    add = parser.add_argument_group("cores").add_argument
    add("--bind_cores_to_rank", action="store_true", help="each rank runs on its own share of the cores")
    add("--bind_core_list", metavar="1,3-5", help="the cores to share; default: all")
    add = parser.add_argument_group("without effect, or refused").add_argument
    add("--no_ssh_check", action="store_true", help="without effect: the hosts are not tried before the job")
    add("--log_level", default="info", help="without effect: the launcher logs nothing")
    add("-q", "--quiet", action="store_true", help="without effect: the launcher logs nothing")
    add("--autotuning", choices=("tune", "run"), type=_autotuning, help="refused")


def _launcher(given: str) -> str:
    """pdsh or ssh; DeepSpeed's other launchers start the ranks themselves.

    Raises:
        argparse.ArgumentTypeError: the launcher is another one.
    """
    name = given.lower()
    if name in ("pdsh", "ssh"):
        return name
    starter = "srun" if name == "slurm" else "mpirun"
    raise argparse.ArgumentTypeError(
        f"{given!r} is not offered; start the ranks by their own command, as in: {starter} -n RANKS python -m "
        "zerobench.compat SCRIPT"
    )


def _autotuning(given: str) -> str:
    """Refuse.

    Raises:
        argparse.ArgumentTypeError: always.
    """
    raise argparse.ArgumentTypeError("DeepSpeed's autotuner is not offered; start the job without --autotuning")
