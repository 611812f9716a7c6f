"""Placement: a ZeRO stage as the set of training states that only their owners keep.

Rajbhandari et al. (arXiv 1910.02054, section 5) shard optimizer state (P_os), gradients (P_os+g) and parameters
(P_os+g+p). Only this module asks for the number of the stage; the rest of the engine asks a Placement whether a state
is sharded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """The states that are sharded over the ranks; every other state is replicated on every rank."""

    optimizer: bool
    gradients: bool
    parameters: bool

    @classmethod
    def of_stage(cls, stage: int) -> Placement:
        """The placement of ZeRO stage 0, 1, 2 or 3."""
        return cls(optimizer=stage >= 1, gradients=stage >= 2, parameters=stage >= 3)
