"""The agent of one node: starts its ranks by torch.distributed.run, and ends them all if one fails."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from zerobench.compat.activation import activate_children
from zerobench.compat.launcher.cores import VARIABLE, parse_cores, share_of_rank
from zerobench.machine.launch import threads_each


def run_node(given: argparse.Namespace, slots: Sequence[int], nodes: int, node: int, address: str) -> int:
    """Start the ranks of this node, one for each slot, and wait for them.

    Returns:
        The exit code of the rank that failed first; below zero, a signal's number. 0, if none failed.

    Args:
        given: the options of ``zerobench launch``.
        slots: the GPUs of this node's ranks.
        nodes: the number of nodes.
        node: this node's rank.
        address: the host of rank 0.
    """
    _bind_cores(given, len(slots))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_each(len(slots))))
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, slots)))
    pid = Path(tempfile.gettempdir(), f"{os.getpid()}.deepspeed") if given.save_pid else None
    if pid is not None:
        pid.write_text(f"{os.getpid()}\n", encoding="utf-8")
    try:
        return _run([*_torchrun(given, len(slots), nodes, node, address), *_child(given)])
    finally:
        if pid is not None:
            pid.unlink(missing_ok=True)


def _bind_cores(given: argparse.Namespace, ranks: int) -> None:
    """Give the ranks the cores to share, and as many threads."""
    if given.bind_cores_to_rank:
        cores = parse_cores(given.bind_core_list)
        os.environ.setdefault("OMP_NUM_THREADS", str(len(share_of_rank(cores, 0, ranks))))
        os.environ[VARIABLE] = ",".join(map(str, cores))


def _torchrun(given: argparse.Namespace, ranks: int, nodes: int, node: int, address: str) -> list[str]:
    """The arguments of torch.distributed.run before the program."""
    options = [f"--nproc_per_node={ranks}", f"--nnodes={nodes}"]
    if nodes > 1:
        options += [f"--node_rank={node}", f"--master_addr={address}", f"--master_port={given.master_port or 29500}"]
    elif given.master_port:
        options += ["--master_addr=127.0.0.1", f"--master_port={given.master_port}"]
    else:
        options += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    if given.enable_each_rank_log is not None:
        options += [f"--log_dir={given.enable_each_rank_log}", "--redirects=3"]
    return options


def _child(given: argparse.Namespace) -> list[str]:
    """The program of a rank."""
    from torch.distributed.elastic.utils.api import macros

    if given.no_python:
        activate_children()
        rank = [] if given.no_local_rank else [f"--local_rank={macros.local_rank}"]
        return ["--no_python", given.script, *rank, *given.arguments]
    local_rank = [] if given.no_local_rank else ["--local-rank"]
    script = ["-m", given.script] if given.module else [given.script]
    return ["--module", "zerobench.compat", *local_rank, *script, *given.arguments]


def _run(arguments: list[str]) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except SignalException as error:  # torch has passed it on to the ranks
        print(f"zerobench launch: received {error.sigval.name}, and the ranks were ended", file=sys.stderr)
        return 1
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        ended = f"rank {rank} failed with exit code {failure.exitcode}, and the other ranks were ended"
        print(f"zerobench launch: {ended}", file=sys.stderr)  # its traceback is above
        return int(failure.exitcode)
    return 0
