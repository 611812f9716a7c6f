"""FSDP1: a whole state dict of a model on other ranks than the job's first is empty everywhere."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

#: Processes of the job.
RANKS = 3
#: The ranks of the model.
CASES = ([0, 1], [1, 2])


def on_rank(rank: int, folder: str) -> None:
    """Ask for the whole state of each model; rank 0 collects the number of tensors by rank."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    wrong = False
    for ranks in CASES:
        group = dist.new_group(ranks)
        found = None
        if rank in ranks:
            whole = ShardingStrategy.NO_SHARD  # with shards on a CPU: ../full-state-on-cpu
            model = FullyShardedDataParallel(torch.nn.Linear(4, 4), group, whole, device_id=torch.device("cpu"))
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            found = len(get_model_state_dict(model, options=options))
        told: list[int | None] = [None] * RANKS
        dist.all_gather_object(told, found)
        here = {each: told[each] for each in ranks}
        if rank == 0:
            print(f"model on ranks {ranks}: expected 2 tensors on one of them, got {here}", flush=True)
        wrong = wrong or not any(here.values())
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(int(wrong))


def main() -> int:
    """1 if no rank gets the state."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(on_rank, (folder,), nprocs=RANKS)
        except mp.ProcessExitedException:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
