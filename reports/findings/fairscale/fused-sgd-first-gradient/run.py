"""fairscale: OSS with SGD(fused=True) and momentum raises if a block trains that was frozen in the first update."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


def two_steps(fused: bool) -> str:
    """Train two layers, of which the first is frozen in the first step; the outcome."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused)
    module = ShardedDataParallel(model, optimizer, warn_on_trainable_params_changed=False)
    for frozen in (True, False):
        model[0].requires_grad_(not frozen)
        module.zero_grad()
        module(torch.ones(1, 2)).sum().backward()
        try:
            optimizer.step()
        except TypeError as error:
            return f"TypeError: {error}"
    return "two updates"


def main() -> int:
    """1 if an update raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {fused: two_steps(fused) for fused in (False, True)}
        dist.destroy_process_group()
    for fused, value in found.items():
        print(f"fused={fused}: expected two updates, got {value}")
    return int(any(value != "two updates" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
