"""fairscale: OSS with Adagrad(fused=True) updates a transposed parameter with the sums of other elements."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


def sums(fused: bool) -> list[list[float]]:
    """Adagrad's sums of a transposed weight after one step with gradients 0 to 5."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = torch.nn.Linear(3, 2, bias=False)
    model.weight = torch.nn.Parameter(torch.ones(3, 2).t())
    optimizer = OSS(model.parameters(), optim=torch.optim.Adagrad, lr=0.1, fused=fused)
    module = ShardedDataParallel(model, optimizer, warn_on_trainable_params_changed=False)
    (module(torch.eye(3)).t() * torch.arange(6.0).view(2, 3)).sum().backward()
    optimizer.step()
    found: list[list[float]] = optimizer.optim.state[model.weight]["sum"].tolist()
    return found


def main() -> int:
    """1 if the sums are not the squares of the gradients."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {fused: sums(fused) for fused in (False, True)}
        dist.destroy_process_group()
    expected = [[0.0, 1.0, 4.0], [9.0, 16.0, 25.0]]
    for fused, value in found.items():
        print(f"fused={fused}: expected {expected}, got {value}")
    return int(any(value != expected for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
