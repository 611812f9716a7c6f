"""Placement: the training states that a ZeRO stage shards; Mesh: the shape of the ranks that share them.

Nothing else in the harness asks which stage it is. No engine is asked: these are the words of the ZeRO paper
(arXiv 1910.02054, section 5), by which every engine is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.errors import UsageError


@dataclass(frozen=True)
class Placement:
    """The states of which each rank keeps its shard only; the others are replicated on every rank."""

    optimizer: bool
    gradients: bool
    parameters: bool

    @classmethod
    def of_stage(cls, stage: int) -> Placement:
        """The placement of ZeRO stage 0, 1, 2 or 3."""
        return cls(optimizer=stage >= 1, gradients=stage >= 2, parameters=stage >= 3)


@dataclass(frozen=True)
class Mesh:
    """``replicate`` groups of ``shard`` ranks: the ranks of a group share each state, and every group has all states.

    Rank r is number r % shard of group r // shard. All ranks are data-parallel. With ``replicate`` above 1 it is hybrid
    sharding.
    """

    shard: int
    replicate: int = 1

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.shard * self.replicate

    @classmethod
    def of(cls, world: int, replicate: int) -> Mesh:
        """``world`` ranks in ``replicate`` groups.

        Raises:
            UsageError: the groups would not have equally many ranks.
        """
        if replicate < 1 or world % replicate:
            raise UsageError(f"{world} ranks do not make {replicate} groups of equal size; give a divisor of {world}")
        return cls(world // replicate, replicate)
