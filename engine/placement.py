"""What a ZeRO stage is: the set of training states that only their owner keeps.

Rajbhandari et al. (arXiv 1910.02054, section 5) shard optimizer state (P_os), gradients (P_os+g) and parameters
(P_os+g+p). This module is the only place that asks which stage it is; the rest of the engine asks a Placement whether
a state is sharded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Which states are sharded over the ranks; what is not sharded is replicated on every rank."""

    optimizer: bool
    gradients: bool
    parameters: bool

    @classmethod
    def of_stage(cls, stage: int) -> Placement:
        """The placement of ZeRO stage 0, 1, 2 or 3."""
        return cls(optimizer=stage >= 1, gradients=stage >= 2, parameters=stage >= 3)
