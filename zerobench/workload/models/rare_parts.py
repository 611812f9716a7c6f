"""The parts of a model that few models have, in one module."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: An integer of fp64, and of no narrower dtype.
_WIDE = 2.0**24 + 1


class RareParts(nn.Module):
    """[B, width] to the same shape, by way of

    - a parameter of four dimensions whose channels come last in memory;
    - a matrix with three names, one of which is in a submodule with the name ``module``, beside a parameter whose name
      is the same without it;
    - buffers of fp64 and of truth values, which lose their values in a narrower dtype or in another type;
    - a forward hook of the model itself.
    """

    offset: Tensor
    positive: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        std = 0.5 / width**0.5
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(width, width), std=std))
        wide = nn.init.normal_(torch.empty(width, width, 2, 3), std=std / 2)
        self.wide = nn.Parameter(wide.to(memory_format=torch.channels_last))
        self.module = nn.Linear(width, width)
        self.second, self.third = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.second.weight = self.third.weight = self.module.weight
        self.register_buffer("offset", torch.tensor(_WIDE, dtype=torch.float64))
        self.register_buffer("positive", torch.tensor([True] * (width - 1) + [False]))
        self.module.register_forward_hook(_halve)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.weight + self.wide[:, :, 1].sum(2) - self.wide[:, :, 0, 0])
        x = x + self.third(torch.tanh(self.second(torch.tanh(self.module(x)))))
        return torch.where(self.positive, x, -x) * (self.offset - (_WIDE - 1))


def _halve(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return output / 2
