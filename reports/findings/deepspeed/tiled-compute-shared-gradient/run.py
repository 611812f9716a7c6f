"""DeepSpeed: with output_reduction="mean" sequence_tiled_compute divides, in place, a gradient that other parts of the
loss have too."""

from __future__ import annotations

import os
import sys
import warnings

import torch
from torch.nn.functional import cross_entropy


def gradients(shards: int) -> dict[str, list[float]]:
    """Those of a hidden state, by a tiled loss and by a penalty that is added to it."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute

    torch.manual_seed(0)
    hidden = torch.randn(1, 8, 4, requires_grad=True)
    weight = torch.randn(6, 4, requires_grad=True)
    scale = torch.ones(1, requires_grad=True)
    y = torch.randint(6, (1, 8))
    penalty = scale.square().sum()

    def loss(hidden: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy((hidden @ weight.T).flatten(0, 1), y.flatten())

    if shards:
        given = {"hidden": hidden, "y": y}
        found = sequence_tiled_compute(loss, 8, shards, given, {}, "hidden", [weight], output_unshard_dimension=0)
    else:
        found = loss(hidden, y)
    (found + penalty).backward()
    tensors = {"hidden": hidden.grad, "weight": weight.grad, "penalty": scale.grad}
    return {name: each.flatten()[:1].tolist() for name, each in tensors.items() if each is not None}


def main() -> int:
    """1 if tiles change a gradient."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    found = {shards: gradients(shards) for shards in (0, 2, 4)}
    for shards, each in found.items():
        rounded = {name: round(value[0], 4) for name, value in each.items()}
        print(f"{f'{shards} shards' if shards else 'not tiled'}: gradients {rounded}")
    whole = found.pop(0)
    return int(any(abs(each[name][0] - whole[name][0]) > 1e-4 for each in found.values() for name in whole))


if __name__ == "__main__":
    sys.exit(main())
