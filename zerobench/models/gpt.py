"""A decoder-only GPT: learned positions, pre-LayerNorm blocks, GELU, causal attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zerobench.errors import UsageError
from zerobench.scenario import Gpt

#: About 0.1, 2.8, 25, 124 and 1558 million parameters; the last two are GPT-2's own shapes.
SIZES: dict[str, Gpt] = {
    "nano": Gpt(context=32, width=48, layers=3, heads=3),
    "mini": Gpt(),
    "small": Gpt(context=256, width=512, layers=8, heads=8),
    "gpt2": Gpt(vocab=50257, context=1024, width=768, layers=12, heads=12, tied=True),
    "gpt2-xl": Gpt(vocab=50257, context=1024, width=1600, layers=48, heads=25, tied=True),
}


class Attention(nn.Module):
    """Causal self-attention: [B, T, width] to the same shape."""

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.heads = spec.heads
        self.qkv = nn.Linear(spec.width, 3 * spec.width)
        self.out = nn.Linear(spec.width, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a GELU MLP of four times the width, each after a LayerNorm and beside a residual."""

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(spec.width)
        self.attention = Attention(spec)
        self.norm2 = nn.LayerNorm(spec.width)
        self.up = nn.Linear(spec.width, 4 * spec.width)
        self.down = nn.Linear(4 * spec.width, spec.width)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))  # type: ignore[no-any-return]


class GptModel(nn.Module):
    """``forward(tokens, targets)``, both int64 [B, T], is the mean cross-entropy in nats, in fp32 or wider.

    Raises:
        UsageError: the heads do not divide the width.
    """

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        if spec.heads < 1 or spec.width % spec.heads:
            raise UsageError(f"{spec.heads} heads do not divide a width of {spec.width}; choose a divisor of the width")
        self.spec = spec
        self.tokens = nn.Embedding(spec.vocab, spec.width)
        self.positions = nn.Embedding(spec.context, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocab, bias=False)
        if spec.tied:
            self.head.weight = self.tokens.weight
        self.apply(_initialize)

    def forward(self, tokens: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = self._call(block, x)
        logits = self.head(self.norm(x))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * scale

    def _call(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.spec.recompute == "none" or not torch.is_grad_enabled():
            return block(x)  # type: ignore[no-any-return]
        return checkpoint(block, x, use_reentrant=self.spec.recompute == "reentrant")  # type: ignore[no-any-return]


def _initialize(module: nn.Module) -> None:
    """GPT-2's initialization, without its scaling of residual projections."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
