"""The named models and their sizes; this module does not need torch."""

from __future__ import annotations

import dataclasses

from zerobench.model_specs import Gpt, Odd, Vit

#: About 0.1, 2.8, 25, 124 and 1558 million parameters; the last two are GPT-2's own shapes.
_GPT = {
    "nano": Gpt(context=32, width=48, layers=3, heads=3),
    "mini": Gpt(),
    "small": Gpt(context=256, width=512, layers=8, heads=8),
    "gpt2": Gpt(vocab=50257, context=1024, width=768, layers=12, heads=12, tied=True),
    "gpt2-xl": Gpt(vocab=50257, context=1024, width=1600, layers=48, heads=25, tied=True),
}
#: About 0.1, 22, 87, 304, 632 and 957 million parameters: a tiny one for tests, ViT-S/16 (DeiT's), ViT-B/16, ViT-L/16,
#: ViT-H/14, and the width and depth of ViT-g/14 (its own MLP is a little wider, for 1011 million).
_VIT = {
    "vit-tiny": Vit(image=32, patch=8, classes=10, width=48, layers=3, heads=3),
    "vit-s": Vit(width=384, layers=12, heads=6),
    "vit-b": Vit(),
    "vit-l": Vit(width=1024, layers=24, heads=16),
    "vit-h": Vit(patch=14, width=1280, layers=32, heads=16),
    "vit-1b": Vit(patch=14, width=1408, layers=40, heads=16),
}
#: Piecewise linear and without a division: on dyadic data no sum of its first step is rounded.
_EXACT = {"exact": Odd(width=32, hidden=(48, 40), activation="relu", loss="dot", norm=False)}
SIZES: dict[str, Gpt | Vit | Odd] = {**_GPT, **_VIT, **_EXACT}


def name_of(spec: Gpt | Vit | Odd) -> str | None:
    """The name of a size in :data:`SIZES`, with any recomputation and dropout; None if it has none."""
    plain = dataclasses.replace(spec, recompute="none", dropout=0.0)
    return next((name for name, size in SIZES.items() if size == plain), None)
