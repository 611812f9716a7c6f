"""The collectives that the engine uses: they move bytes and never add.

With one rank there is nothing to move: each is then a local copy and no collective is issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.comm.mesh import Mesh

# torch 2.13 renamed the flat all-gather and warns on the old name, which is the only one that 2.11 has.
_all_gather_flat: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Handle(Protocol):
    """Work under way: a collective, a copy, a read or a write."""

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            OffloadError: it was a read or a write of a file, and it failed.
        """


class Works:
    """The handle of several works that make one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self._works:
            work.wait()


class Done:
    """The handle of work that was finished when it was returned."""

    def wait(self) -> None:
        """Nothing to wait for."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group, this process's number among them, and their mesh.

    ``group`` is None if there is no process group at all.
    """

    group: dist.ProcessGroup | None
    rank: int
    mesh: Mesh

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, mesh: Mesh | None = None) -> Ranks:
        """The given group, else the default one, else this process alone; all of them share each state by default.

        Raises:
            ConfigError: the mesh does not fit the group, or is one that the engine does not offer.
        """
        if group is None and not dist.is_initialized():
            return cls._checked(None, 0, 1, mesh)
        group = group or dist.group.WORLD
        return cls._checked(group, dist.get_rank(group), dist.get_world_size(group), mesh)

    @classmethod
    def _checked(cls, group: dist.ProcessGroup | None, rank: int, world: int, mesh: Mesh | None) -> Ranks:
        mesh = mesh or Mesh(shard=world)
        mesh.check(world)
        return cls(group, rank, mesh)

    @property
    def world(self) -> int:
        """The number of ranks that share each state."""
        return self.mesh.shard

    def all_gather(self, output: Tensor, own: Tensor) -> Any:
        """Start gathering ``own`` (n elements) of every rank into ``output`` (world * n, in rank order).

        In a CPU's memory by sends between ranks: gloo's own all-gather takes longer (docs/notes/speed.md).
        """
        if self.world == 1:
            if output.data_ptr() != own.data_ptr():
                output.copy_(own)
            return Done()
        if output.device.type == "cpu":
            return self._send_to_all(output.view(self.world, -1), own)
        return _all_gather_flat(output, own, group=self.group, async_op=True)

    def _send_to_all(self, rows: Tensor, own: Tensor) -> Works:
        works: list[Any] = []
        for distance in range(1, self.world) if own.numel() else ():
            source, target = (self.rank - distance) % self.world, (self.rank + distance) % self.world
            works.append(dist.irecv(rows[source], group=self.group, group_src=source))
            works.append(dist.isend(own, group=self.group, group_dst=target))
        if rows[self.rank].data_ptr() != own.data_ptr():
            rows[self.rank].copy_(own)
        return Works(works)

    def all_to_all(self, output: Tensor, parts: Tensor) -> Any:
        """Start sending the r-th of ``world`` equal parts of ``parts`` to rank r; ``output`` is in rank order."""
        if self.world == 1:
            output.copy_(parts)
            return Done()
        return dist.all_to_all_single(output, parts, group=self.group, async_op=True)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Give every rank the values that rank ``source`` of the group has."""
        if self.world > 1 and tensor.numel():
            dist.broadcast(tensor, dist.get_global_rank(self._group, source), group=self.group)

    def messengers(self) -> Ranks:
        """These ranks as they send each other small messages: themselves, or in a group to destroy. A collective.

        Where the group carries nothing between CPUs (NCCL alone), every message would make host and GPU wait for each
        other. All ranks that there are then have a gloo group besides; a part of them could not make one by itself.
        """
        if self.world == 1 or self._carries_cpu or self.world < dist.get_world_size():
            return self
        return self.of(dist.new_group(backend="gloo"))

    def message_device(self, device: torch.device) -> torch.device:
        """Where small messages should lie: the CPU if the group's backend carries CPU tensors, else ``device``."""
        return torch.device("cpu") if self.world == 1 or self._carries_cpu else device

    @property
    def _carries_cpu(self) -> bool:
        return "cpu:" in str(dist.get_backend_config(self._group))

    def destroy(self) -> None:
        """Destroy the group, unless all have been."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def anywhere(self, flags: list[bool], device: torch.device) -> list[bool]:
        """Which of the flags are true on any rank."""
        own = torch.tensor(flags, dtype=torch.uint8, device=device)
        everyone = torch.empty(self.world, len(flags), dtype=torch.uint8, device=device)
        self.all_gather(everyone.view(-1), own).wait()
        return everyone.any(dim=0).tolist()

    def same_everywhere(self, value: str) -> list[str]:
        """What every rank gave, in rank order."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    @property
    def _group(self) -> dist.ProcessGroup:
        assert self.group is not None
        return self.group
