"""The blocks of a model, as an engine that shards block by block must group them."""

from __future__ import annotations

from torch import nn


def block_groups(model: nn.Module) -> list[list[nn.Module]]:
    """The model's blocks in order; those that share a parameter are in one group."""
    groups: list[list[nn.Module]] = []
    for block in model.get_submodule("blocks").children():
        own = set(block.parameters())
        tied = [group for group in groups if any(own.intersection(other.parameters()) for other in group)]
        if tied:
            tied[0].append(block)
        else:
            groups.append([block])
    return groups
