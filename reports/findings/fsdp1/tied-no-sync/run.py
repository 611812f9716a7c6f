"""FSDP1 in bf16: no_sync fails if two names share one parameter."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision


class Model(nn.Module):
    """Two layers, with one weight if ``tied`` is set."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if tied:
            self.head.weight = self.stem.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x)).sum()


def train(tied: bool, dtype: torch.dtype) -> str:
    """Two micro-steps, the first in no_sync, and a step; or the exception."""
    module = FullyShardedDataParallel(
        Model(tied),
        use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    try:
        with module.no_sync():
            module(torch.ones(1, 4)).backward()
        module(torch.ones(1, 4)).backward()
        optimizer.step()
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__}: {error}".split(". ")[0]
    return "one step"


def main() -> int:
    """1 if a step fails."""
    warnings.simplefilter("ignore")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for dtype in (torch.float32, torch.bfloat16):
            for tied in (False, True):
                got = train(tied, dtype)
                print(f"{dtype}, tied={tied}: expected one step, got {got}")
                wrong |= got != "one step"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
