"""A decoder-only GPT: learned positions, pre-LayerNorm blocks, GELU, causal attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerobench.model_specs import Gpt
from zerobench.workload.models.transformer import Block, call, initialize


class GptModel(nn.Module):
    """``forward(tokens, targets)``, both int64 [B, T], is the mean cross-entropy in nats, in fp32 or wider.

    Raises:
        UsageError: if the heads do not divide the width.
    """

    def __init__(self, spec: Gpt) -> None:
        super().__init__()
        self.spec = spec
        self.tokens = nn.Embedding(spec.vocab, spec.width)
        self.positions = nn.Embedding(spec.context, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.ModuleList(Block(spec, causal=True) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocab, bias=False)
        if spec.tied:
            self.head.weight = self.tokens.weight
        self.apply(initialize)

    def forward(self, tokens: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = call(block, x, self.spec.recompute)
        logits = self.head(self.norm(x))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * scale
