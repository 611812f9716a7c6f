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


def layers_of(block: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules inside a block that have parameters of their own, by name, those inside others first."""
    named = list(block.named_modules())[1:]
    return [(name, each) for name, each in reversed(named) if any(True for _ in each.parameters(recurse=False))]
