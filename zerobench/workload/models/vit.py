"""A vision transformer (Dosovitskiy et al., 2021): patches, a class token, learned positions, pre-LayerNorm blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerobench.errors import UsageError
from zerobench.model_specs import Vit
from zerobench.workload.data import CHANNELS
from zerobench.workload.models.transformer import Block, call, initialize


class VitModel(nn.Module):
    """``forward(images, labels)`` is the mean cross-entropy in nats, in fp32 or wider.

    Images are [B, 3, image, image], labels int64 [B]. The linear layer over patches is the usual convolution with a
    stride equal to its kernel.

    Raises:
        UsageError: if the patches do not tile the image, or if the heads do not divide the width.
    """

    def __init__(self, spec: Vit) -> None:
        super().__init__()
        if spec.patch < 1 or spec.image % spec.patch:
            raise UsageError(f"patches of {spec.patch} pixels do not tile an image of {spec.image}; choose a divisor")
        self.spec = spec
        self.patches = nn.Linear(CHANNELS * spec.patch**2, spec.width)
        self.class_token = nn.Parameter(torch.zeros(spec.width))
        self.positions = nn.Embedding(1 + (spec.image // spec.patch) ** 2, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.blocks = nn.ModuleList(Block(spec, causal=False) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes)
        self.apply(initialize)

    def forward(self, images: Tensor, labels: Tensor, scale: float = 1.0) -> Tensor:
        patches = self.patches(_cut(images, self.spec.patch))
        x = torch.cat([self.class_token.expand(len(images), 1, -1), patches], dim=1)
        x = self.dropout(x + self.positions(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            x = call(block, x, self.spec.recompute)
        logits = self.head(self.norm(x[:, 0]))
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels) * scale


def _cut(images: Tensor, patch: int) -> Tensor:
    """[B, C, H, W] to [B, patches, C * patch * patch]."""
    grid = images.shape[2] // patch
    cut = images.reshape(len(images), CHANNELS, grid, patch, grid, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(len(images), grid**2, -1)
