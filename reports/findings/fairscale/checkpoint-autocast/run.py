"""fairscale: checkpoint_wrapper recomputes in another dtype than the autocast of its forward."""

from __future__ import annotations

import sys
import warnings

import torch
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Module):
    """Two layers, and the dtypes that they have computed in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.dtypes = list[str]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.tanh(self.up(x)))
        self.dtypes.append(str(y.dtype))
        return y


class Recomputed(Block):
    """The same, recomputed by torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(super().forward, x, use_reentrant=True)
        return y


def gradient(block: torch.nn.Module) -> torch.Tensor:
    """A gradient of the first layer, after a forward under autocast."""
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        output = block(torch.randn(32, 16, requires_grad=True))
    output.float().square().mean().backward()
    return block.get_parameter("up.weight").grad


def main() -> int:
    """1 if a recomputation has another dtype than its forward."""
    warnings.simplefilter("ignore")
    from fairscale.nn.checkpoint import checkpoint_wrapper

    expected, found = gradient(Block()), False
    for name, block in (("torch", Recomputed()), ("fairscale", checkpoint_wrapper(Block()))):
        got = gradient(block)
        found = found or len(set(block.dtypes)) > 1
        error = float((got - expected).norm() / expected.norm())
        print(f"{name}: forward and recomputation in {block.dtypes}, error of a gradient {error:.1e}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
