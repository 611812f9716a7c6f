"""FSDP1 in 16 bits: after a forward without a backward, the next backward gives the root's parameters no gradient."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

RANKS = 2


def has_gradients(dtype: torch.dtype, drops: bool) -> bool:
    """Whether all parameters have a gradient after a backward, maybe with a forward before whose loss is dropped."""
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
        use_orig_params=True,
    )
    x = torch.ones(2, 4)
    if drops:
        model(x)
    model(x).sum().backward()
    return all(p.grad is not None for p in model.parameters() if p.numel())


def on_rank(rank: int, folder: str) -> None:
    """Each precision, with and without the first forward."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    tried = [(dtype, drops) for dtype in (torch.float32, torch.bfloat16) for drops in (False, True)]
    found = {f"{dtype}, a forward is dropped: {drops}": has_gradients(dtype, drops) for dtype, drops in tried}
    Path(folder, str(rank)).write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if a parameter has no gradient."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
    for which, has in found.items():
        print(f"{which}: {'every parameter has a gradient' if has else 'a parameter has none'}")
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
