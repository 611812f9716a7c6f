"""FSDP1: a flattened optimizer state does not load into an optimizer that has trained."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

RANKS = 2
#: flatten_optimizer_state_dict, and whether the optimizer that loads has trained.
CASES = ((False, True), (True, False), (True, True))


def build() -> tuple[Any, torch.optim.Optimizer]:
    """A module of one layer, of which the first rank has no element of the bias, and its optimizer."""
    module = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    return module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def step(module: Any, optimizer: torch.optim.Optimizer) -> None:
    """One step of training."""
    module(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def outcome(flat: bool, trained: bool) -> str:
    """Load the state of a module into another one."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    module, optimizer = build()
    step(module, optimizer)
    model_state, optimizer_state = get_state_dict(module, optimizer, options=options)
    module, optimizer = build()
    if trained:
        step(module, optimizer)
    both: dict[str, Any] = {"model_state_dict": model_state, "optim_state_dict": optimizer_state}
    set_state_dict(module, optimizer, **both, options=options)
    return "loaded"


def on_rank(rank: int, folder: str, flat: bool, trained: bool) -> None:
    """One case; rank 0 writes what became of it."""
    faulthandler.disable()
    warnings.simplefilter("ignore")
    name = f"{flat} {trained}"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store {name}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    try:
        found = outcome(flat, trained)
    except (KeyError, RuntimeError) as error:
        found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if rank == 0:
        Path(folder, name).write_text(found)


def main() -> int:
    """1 if a state does not load."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for flat, trained in CASES:
            try:
                mp.spawn(on_rank, (folder, flat, trained), nprocs=RANKS)
                got = Path(folder, f"{flat} {trained}").read_text()
            except mp.ProcessExitedException as error:
                got = error.signal_name or str(error)
            into = "an optimizer that has trained" if trained else "a new optimizer"
            print(f"flatten_optimizer_state_dict={flat}, {into}: expected loaded, got {got}", flush=True)
            wrong = wrong or got != "loaded"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
