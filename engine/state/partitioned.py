"""Partitioned parameters: of no engine yet, and each rank keeps a shard of each. A model is constructed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.layout import Slot
from zerobench.engine.registry import give_number, in_one_order
from zerobench.engine.state.replaced import take_over
from zerobench.engine.state.resharded import Binding
from zerobench.engine.state.unit import use_count

_partitioned = WeakIdKeyDictionary()  # parameter -> Partition


class Partition:
    """The shard of one parameter; between :meth:`gather` and :meth:`release` the parameter is whole.

    Args:
        used: the context of each use while the parameter is not whole; without it a use is an error (see Resharded).
        shard: this rank's, if the parameter's values are elsewhere.
    """

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        ranks: Ranks,
        used: Callable[[Partition], AbstractContextManager[bool]] | None = None,
        shard: Tensor | None = None,
    ) -> None:
        self.ranks, self.numel, self.uses = ranks, parameter.numel(), 0
        self._used = used
        give_number(parameter)
        slot = Slot(name, parameter, -1, 0, self.numel)
        width = -(-self.numel // ranks.world)
        self.own = slice(ranks.rank * width, (ranks.rank + 1) * width)
        self.full = torch.zeros(width * ranks.world, dtype=parameter.dtype, device=parameter.device)
        self.shard = self._cut(slot) if shard is None else shard
        self.binding = Binding(slot, self.full, self.full.untyped_storage)
        self.binding.copied, self.binding.recast = self.copied, self.recast
        self.binding.used = None if used is None else partial(used, self)
        self.binding.unbind()
        self._references = use_count(self.full.untyped_storage())
        self.free()

    def _cut(self, slot: Slot) -> Tensor:
        """This rank's shard of rank 0's values; a collective."""
        slot.view(self.full).copy_(slot.parameter.detach())
        self.ranks.broadcast(self.full)
        return self.full[self.own].clone()

    def copied(self) -> nn.Parameter:
        """Another parameter with these values, partitioned likewise."""
        like, slot = self.binding.like, self.binding.slot
        data = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=self.full.device)
        made = nn.Parameter(data, requires_grad=slot.parameter.requires_grad)
        _partitioned[made] = Partition(slot.name, made, self.ranks, self._used, self.shard.clone())
        return made

    def recast(self, dtype: torch.dtype) -> None:
        """Round the values to another dtype, which the parameter has from now on, as by ``Module.to()``."""
        like, slot = self.binding.like, self.binding.slot
        self.binding.forget()
        slot.parameter.data = torch.empty_strided(like.size(), like.stride(), dtype=dtype, device=self.full.device)
        shard = self.shard.to(dtype)
        _partitioned[slot.parameter] = Partition(slot.name, slot.parameter, self.ranks, self._used, shard)

    def gather(self) -> None:
        """Make the parameter whole, unless it is; a collective."""
        self.uses += 1
        if self.uses == 1:
            storage = self.full.untyped_storage()
            storage.resize_(self.full.numel() * self.full.element_size())
            self.ranks.all_gather(self.full, self.shard).wait()
            self.binding.bind()

    def release(self, source: int | None) -> None:
        """Keep the shard alone, of the values of rank ``source`` if it is given; a collective in that case."""
        take_over([(self, self.binding.slot)])
        if source is not None:
            self.ranks.broadcast(self.full, source)
        self.shard = self.full[self.own].clone()
        self.uses -= 1
        if self.uses == 0:
            self.binding.unbind()
            self.free()

    @property
    def references(self) -> int:
        """The tensors that share the whole values' memory."""
        return use_count(self.full.untyped_storage())

    def free(self) -> None:
        """Free the memory; if numpy has shared it, so that it cannot be resized, or the caller keeps views of it, use a
        new tensor instead.

        Waiting for Python to free it would take long: a binding and its classes refer to each other.
        """
        storage = self.full.untyped_storage()
        if not storage.resizable() or use_count(storage) > self._references:
            self.full = torch.empty_like(self.full)
            self.binding.storage = self.full.untyped_storage
            self.binding.view = self.binding.slot.view(self.full)
            storage = self.full.untyped_storage()
        storage.resize_(0)

    def surrender(self) -> Tensor:
        """The whole values, 1-dimensional in the order of memory; the parameter has none any more. A collective."""
        self.gather()
        self.binding.forget()
        return self.full[: self.numel]


def partition(
    name: str,
    parameter: nn.Parameter,
    ranks: Ranks,
    used: Callable[[Partition], AbstractContextManager[bool]] | None = None,
) -> None:
    """Keep this rank's shard of rank 0's values, and free the rest; until it is gathered the parameter refuses every
    use for which ``used`` does not make it whole. A collective. A partitioned parameter stays as it is."""
    if parameter not in _partitioned:
        _partitioned[parameter] = Partition(name, parameter, ranks, used)


def is_partitioned(parameter: object) -> bool:
    """Whether the parameter is partitioned."""
    return parameter in _partitioned


def partition_of(parameter: nn.Parameter) -> Partition | None:
    """The parameter's shard; None if it is not partitioned."""
    return _partitioned.get(parameter)  # type: ignore[no-untyped-call, no-any-return]


@contextmanager
def gathered(parameters: Iterable[nn.Parameter], source: int | None) -> Iterator[None]:
    """Make the partitioned ones of these parameters whole; edits of rank ``source``, or of all ranks, persist.

    A collective. The order does not matter: a set, which transformers gives, has another order on each rank.
    """
    found: list[Partition] = [_partitioned[each] for each in in_one_order(parameters) if each in _partitioned]
    for each in found:
        each.gather()
    try:
        yield
    finally:
        for each in found:
            each.release(source)


def take_values(slot: Slot, unit: Tensor) -> bool:
    """Write a partitioned parameter's values to its slot of ``unit``, and make it an ordinary parameter without values.

    A collective. False, and nothing else, if it is not partitioned.
    """
    found = _pop(slot.parameter)
    if found is None:
        return False
    start, stop = slot.start, slot.start + slot.numel
    assert slot.stride == found.binding.slot.stride  # read while the parameter still has its strides
    unit[start:stop].copy_(found.surrender())
    found.free()
    return True


def restore(parameter: nn.Parameter) -> None:
    """Make a partitioned parameter an ordinary one, whole on every rank; a collective. Others stay as they are."""
    found = _pop(parameter)
    if found is not None:
        parameter.data = found.binding.slot.view(found.surrender())


def _pop(parameter: nn.Parameter) -> Partition | None:
    return _partitioned.pop(parameter, None)  # type: ignore[no-untyped-call, no-any-return]
