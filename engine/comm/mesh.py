"""Mesh: the shape of the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.engine.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """``shard`` ranks share each state, and there are ``replicate`` such groups of ranks; both are at least 1.

    Hybrid sharding has ``replicate`` > 1. This engine offers ``replicate`` = 1.
    """

    shard: int
    replicate: int = 1

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.shard * self.replicate

    def check(self, world: int) -> None:
        """Check that an engine on ``world`` ranks can have this shape.

        Raises:
            ConfigError: the mesh has replicas, or another number of ranks.
        """
        if self.replicate != 1:
            raise ConfigError(
                f"a mesh with replicate={self.replicate} is hybrid sharding, which this engine does not offer; use "
                f"replicate=1 and shard={world}"
            )
        if self.shard != world:
            raise ConfigError(f"a mesh of {self.world} ranks does not fit the process group, which has {world}")
