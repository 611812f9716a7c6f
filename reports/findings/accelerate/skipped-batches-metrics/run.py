"""Accelerate: after skip_first_batches, gather_for_metrics returns the samples that pad the last batch."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

#: Ten samples, and batches of two on each of two ranks: the last batch of rank 1 begins again with the first samples.
SAMPLES = list(range(10))


def run(rank: int, folder: str) -> None:
    """Exit with 1 if samples come twice."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    from accelerate import Accelerator, skip_first_batches

    accelerator = Accelerator(cpu=True)
    samples: Any = torch.tensor(SAMPLES)
    wrong = False
    for skipped in (None, 0, 1):
        loader = accelerator.prepare(DataLoader(samples, batch_size=2))
        if skipped is not None:
            loader = skip_first_batches(loader, skipped)
        got = torch.cat([accelerator.gather_for_metrics(batch) for batch in loader]).tolist()
        expected = SAMPLES[4 * (skipped or 0) :]
        wrong = wrong or got != expected
        if rank == 0:
            print(f"skip_first_batches: {skipped}; expected {expected}, got {got}")
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.exit(int(wrong))


def main() -> int:
    """1 if samples come twice."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


if __name__ == "__main__":
    sys.exit(main())
