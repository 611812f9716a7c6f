"""The parts that the transformers share: attention, the pre-LayerNorm block, its recomputation, the initialization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zerobench.errors import UsageError
from zerobench.model_specs import Gpt, Recompute, Vit


class Attention(nn.Module):
    """Self-attention, ``causal`` or over all tokens: [B, T, width] to the same shape.

    Raises:
        UsageError: if the heads do not divide the width.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise UsageError(f"{heads} heads do not divide a width of {width}; choose a divisor of the width")
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a GELU MLP of four times the width, each after a LayerNorm and beside a residual."""

    def __init__(self, spec: Gpt | Vit, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(spec.width)
        self.attention = Attention(spec.width, spec.heads, causal)
        self.norm2 = nn.LayerNorm(spec.width)
        self.up = nn.Linear(spec.width, 4 * spec.width)
        self.down = nn.Linear(4 * spec.width, spec.width)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))  # type: ignore[no-any-return]


def call(block: nn.Module, x: Tensor, recompute: Recompute) -> Tensor:
    """``block(x)``, its activations kept or recomputed in backward."""
    if recompute == "none" or not torch.is_grad_enabled():
        return block(x)  # type: ignore[no-any-return]
    return checkpoint(block, x, use_reentrant=recompute == "reentrant")  # type: ignore[no-any-return]


def initialize(module: nn.Module) -> None:
    """GPT-2's initialization, without its scaling of residual projections."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
