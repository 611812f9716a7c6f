"""The blocks of an odd model, and the forms of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerobench.model_specs import Odd

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}


@dataclass
class Output:
    """A block's hidden state, and a tensor that the model does not use."""

    hidden: Tensor
    branch: Tensor


#: The forms of a structured output; a block has that of its place in the list.
_FORMS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda hidden, branch: (hidden, branch),
    lambda hidden, branch: {"hidden": hidden, "branch": branch},
    Output,
)


class Block(nn.Module):
    """A residual block: [B, width] to the same shape by way of ``inner`` features."""

    def __init__(self, spec: Odd, inner: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[spec.activation]
        self.norm: nn.Module = nn.LayerNorm(spec.width) if spec.norm else nn.Identity()
        self.up = nn.Linear(spec.width, inner)
        self.down = nn.Linear(inner, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.form: Callable[[Tensor, Tensor], Any] = _plain

    def forward(self, x: Tensor) -> Any:
        branch = self.down(self.dropout(self.activation(self.up(self.norm(x)))))
        return self.form(x + branch, branch)


class Nested(nn.Module):
    """A block that holds a list of blocks, and a parameter beside it: [B, width] to the same shape."""

    def __init__(self, spec: Odd) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(spec, 4)])
        self.gain = nn.Parameter(torch.ones(spec.width))
        self.form: Callable[[Tensor, Tensor], Any] = _plain

    def forward(self, x: Tensor) -> Any:
        hidden = x
        for layer in self.layers:
            hidden = layer(hidden)
        return self.form(hidden * self.gain, hidden)


def structure(blocks: nn.ModuleList) -> None:
    """Make every block return a structured output: the first a tuple, the second a dict, the third a dataclass."""
    for position, block in enumerate(blocks.children()):
        block.form = _FORMS[position % len(_FORMS)]  # type: ignore[assignment]  # a function, not a module


def hidden_of(output: Any) -> Tensor:
    """The hidden state in a block's output of any form."""
    if isinstance(output, Output):
        return output.hidden
    if isinstance(output, dict):
        return output["hidden"]  # type: ignore[no-any-return]
    return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


def _plain(hidden: Tensor, branch: Tensor) -> Tensor:
    return hidden
