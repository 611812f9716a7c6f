"""The collectives that the engine uses: they move bytes and never add.

If there is only one rank, each of them is a local copy and no collective is issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.comm.mesh import Mesh
from zerobench.engine.comm.waiting import told_if_long

# torch 2.13 renamed the flat all-gather and warns on the old name; torch 2.11 has only the old name.
_all_gather_flat: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Handle(Protocol):
    """Pending work: a collective, a copy, a read or a write."""

    def wait(self) -> None:
        """Wait until the work is done.

        Raises:
            OffloadError: a read or a write of a file failed.
        """


class Works:
    """One handle for several pieces of work."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self._works:
            work.wait()


class Done:
    """The handle of work that is finished already."""

    def wait(self) -> None:
        """Return at once."""


def _copied(source: Tensor, target: Tensor) -> Done:
    """Copy, unless both are the same memory."""
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)
    return Done()


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group, the rank of this process, and the mesh.

    ``group`` is None if there is no process group.
    """

    group: dist.ProcessGroup | None
    rank: int
    mesh: Mesh

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, mesh: Mesh | None = None) -> Ranks:
        """The given group, else the default group, else this process alone. By default all ranks share each state.

        Raises:
            ConfigError: the mesh does not fit the group, or the engine does not support it.
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

        On a CPU by sends between ranks, since gloo's all-gather takes longer (docs/notes/speed.md).
        """
        if self.world == 1:
            return _copied(own, output)
        if output.device.type == "cpu":
            return self._send_to_all(output.view(self.world, -1), own)
        return _all_gather_flat(output, own, group=self.group, async_op=True)

    def _send_to_all(self, rows: Tensor, own: Tensor) -> Works:
        works: list[Any] = []
        group, world = self._group, self.world  # the group's own calls cost a third of those of torch.distributed
        for distance in range(1, world) if own.numel() else ():
            source, target = (self.rank - distance) % world, (self.rank + distance) % world
            works.append(group.recv([rows[source]], source, 0))
            works.append(group.send([own], target, 0))
        if rows[self.rank].data_ptr() != own.data_ptr():
            rows[self.rank].copy_(own)
        return Works(works)

    def all_to_all(self, output: Tensor, parts: Tensor) -> Any:
        """Start sending part r of ``parts``, cut into ``world`` equal parts, to rank r; ``output`` is in rank order.

        If there is only one rank, ``output`` may be ``parts``.
        """
        if self.world == 1:
            return _copied(parts, output)
        return dist.all_to_all_single(output, parts, group=self.group, async_op=True)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Copy the values of rank ``source`` of the group to every rank."""
        if self.world > 1 and tensor.numel():
            dist.broadcast(tensor, dist.get_global_rank(self._group, source), group=self.group)

    def messengers(self) -> Ranks:
        """These ranks, with a group for small messages: this one, or a new one to be destroyed. A collective.

        If the group cannot carry CPU tensors (NCCL alone), every message would make host and GPU wait for each other.
        A gloo group is then created if this group has all ranks of the job; some ranks alone cannot create one.
        """
        if self.world == 1 or self._carries_cpu or self.world < dist.get_world_size():
            return self
        return self.of(dist.new_group(backend="gloo"))

    def message_device(self, device: torch.device) -> torch.device:
        """The device for small messages: the CPU if the group's backend carries CPU tensors, else ``device``."""
        return torch.device("cpu") if self.world == 1 or self._carries_cpu else device

    @property
    def _carries_cpu(self) -> bool:
        return "cpu:" in str(dist.get_backend_config(self._group))

    def destroy(self) -> None:
        """Destroy the group, unless all groups have been destroyed."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def anywhere(self, flags: list[bool], device: torch.device) -> list[bool]:
        """Which of the flags are true on any rank."""
        own = torch.tensor(flags, dtype=torch.uint8, device=device)
        everyone = torch.empty(self.world, len(flags), dtype=torch.uint8, device=device)
        self.all_gather(everyone.view(-1), own).wait()
        return everyone.any(dim=0).tolist()

    def same_everywhere(self, value: str) -> list[str]:
        """The values of all ranks, in rank order; a rank that waits long for the others logs where it waits."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with told_if_long(self.rank):
            dist.all_gather_object(values, value, group=self.group)
        return values

    @property
    def _group(self) -> dist.ProcessGroup:
        assert self.group is not None
        return self.group
