"""The training states of one unit on one rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.layout import Slot
from zerobench.engine.state.portion import Portion
from zerobench.engine.state.replaced import take_over
from zerobench.engine.state.resharded import Binding
from zerobench.engine.state.stores import OptimizerStore, ParameterStore, same_memory


class UnitState:
    """Parameters and gradient of one unit in training, and the stores of the states that this rank owns.

    - ``full``: parameters in the compute dtype over the whole unit, ``unit.padded`` elements; the model's parameters
      are views of it. If parameters are sharded, its memory is freed while the unit is not in use (see below).
    - ``gradient``: the accumulator, over the whole unit or this rank's shard; ``own_gradient`` is this rank's part of
      it. It is empty if no gradient is kept between micro-steps; the sum then goes to ``optimizer_store`` at once.
    - ``optimizer_store`` owns the final gradient sum, the fp32 master and the optimizer states, over the portion's
      extent; ``parameter_store`` owns this rank's shard of the parameters.

    For the memory of a sharded unit, :meth:`allocate` gets it, a gather fills it, :meth:`bind` makes the model's
    parameters views of it, :meth:`unbind` makes them unreadable again, and :meth:`reshard` frees the memory unless it
    is still in use. If parameters are not bound, they refuse every use (see Resharded).

    Padding may have any values; no result depends on them.

    Args:
        portion: the unit, and this rank's part of it.
        full: [unit.padded], the initial values; the model's parameters become views of it.
        gradient: the accumulator.
        optimizer_store: keeps the states that the optimizer steps.
        parameter_store: keeps the shard.
    """

    def __init__(
        self,
        portion: Portion,
        full: Tensor,
        gradient: Tensor,
        optimizer_store: OptimizerStore,
        parameter_store: ParameterStore,
    ) -> None:
        self.portion, self.unit, self.own, self.extent = portion, portion.unit, portion.own, portion.extent
        self.sharded, self.dtype = portion.sharded, portion.dtype
        self.optimizer_store, self.parameter_store = optimizer_store, parameter_store
        self.full, self.gradient, self.own_gradient = full, gradient, portion.owned(gradient)
        self.bound = not self.sharded
        #: The sharded parameters that a caller has edited since their masters were last made to follow.
        self.edited: set[Slot] = set()
        #: Those that a caller has edited in GatheredParameters since then; on every rank the same ones.
        self.written: set[Slot] = set()
        for slot in self.unit.slots:
            slot.parameter.grad = None  # an old gradient would be added to the first step's
            if not self.sharded:
                slot.parameter.data = slot.view(full)
        sharded = self.unit.slots if self.sharded else ()
        self._bindings = [Binding(slot, full, lambda: self.storage) for slot in sharded]
        self._starts = [slot.start for slot in sharded]
        self._remember(full)
        self._unbind()
        #: Whether the whole unit's memory is allocated (its values may still be in flight).
        self.resident = True
        if self.sharded:
            self._free()

    def accumulator(self, start: int, stop: int) -> Tensor:
        """The memory of the sum of elements [start, stop) of the shard; new if no sum is kept between micro-steps."""
        if self.own_gradient.numel() == self.unit.shard:
            return self.own_gradient[start:stop]
        return self.gradient.new_empty(stop - start)

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """A copy of elements [start, stop) of a state that this rank steps, or of its gradient sum ("gradient").

        Between micro-steps only the accumulator has the sum; a store off the device still has that of the step before.
        """
        if name == "gradient" and self.own_gradient.numel() == self.unit.shard:
            return self.own_gradient[start:stop].clone()
        return self.optimizer_store.read(self.portion, name, start, stop)

    def gather_own(self, ranks: Ranks, bucket: int) -> list[Any]:
        """Start all-gathering the parameters if every rank keeps the whole unit and only owners have set it."""
        if self.sharded or self.extent != self.own or ranks.world == 1:
            return []
        return gather_shards(self.unit, self.full, self.parameter_store.load(), ranks, bucket)

    def set_shard(self, slot: Slot, values: Tensor) -> None:
        """Set this rank's part of a sharded parameter; ``values`` is whole, in the order of the parameter's memory."""
        self._set_shard({slot: values})

    def take_shards(self, slots: Iterable[Slot]) -> None:
        """Set this rank's part of sharded parameters to their values in the whole unit."""
        self._set_shard({slot: self.full[slot.start : slot.start + slot.numel] for slot in slots})

    def _set_shard(self, values: Mapping[Slot, Tensor]) -> None:
        own = [(slot, *slot.within(self.own)) for slot in values]
        own = [(slot, lo, hi) for slot, lo, hi in own if lo < hi]
        if own:
            with self.parameter_store.edit() as shard:
                for slot, lo, hi in own:
                    part = shard[lo - self.own.start : hi - self.own.start]
                    part.copy_(values[slot][lo - slot.start : hi - slot.start])

    def keep_edit(self, slot: Slot, shard: Tensor | None = None) -> None:
        """Make the parameter's master its value, except where the value is the rounded master.

        The value is that in the whole unit, or that in ``shard`` if it is given.
        """
        lo, hi = slot.within(self.extent)
        if not (self.unit.trainable and self.portion.has_master_copy and lo < hi):
            return
        at = lo - self.extent.start
        edited = self.full[lo:hi] if shard is None else shard[at : at + hi - lo]
        with self.optimizer_store.edit_master(self.portion, at, at + hi - lo) as master:
            rounded = master.to(edited.dtype)
            kept = (edited == rounded) & (edited.signbit() == rounded.signbit())  # zeros have signs
            master.copy_(torch.where(kept, master, edited.float()))

    def keep_shard_edits(self) -> None:
        """Copy this rank's part of a caller's edits of bound parameters to the shard; nothing is communicated.

        Every rank must have made the same edits, in place or by new data. :meth:`keep_masters` makes masters follow.
        """
        bound = [binding for binding in self._bindings if binding.bound]
        take_over((self, binding.slot) for binding in bound)
        if self._differs(bound):
            slots = [binding.slot for binding in bound]
            self.take_shards(slots)
            self.edited.update(slots)

    def _differs(self, bound: Collection[Binding]) -> bool:
        """Whether this rank's part of the whole unit may differ from the shard.

        The host compares the memory of both. If one of them is elsewhere, this would wait for the device or read a
        file, so that the parameters' version counters decide: they miss an edit in place by ``parameter.data``.
        """
        own, shard = self.portion.owned(self.full), self.parameter_store.memory()
        if shard is not None and own.is_cpu and shard.is_cpu:
            return not same_memory(own, shard)
        return any(binding.written for binding in bound)

    def keep_masters(self) -> None:
        """Make the masters follow the edits that the shard has taken."""
        edited, self.edited = self.edited, set()
        self._follow(edited)

    def keep_written(self) -> bool:
        """Make the masters follow edits in GatheredParameters; whether there may have been any."""
        written, self.written = self.written, set()
        self._follow(written)
        return bool(written)

    def _follow(self, slots: Collection[Slot]) -> None:
        shard = self.parameter_store.load() if slots and self.sharded else None
        with self.optimizer_store.editing():
            for slot in sorted(slots, key=lambda slot: slot.start):
                self.keep_edit(slot, shard)

    def set_used(self, used: Callable[[], AbstractContextManager[bool]] | None) -> None:
        """Set how a call with an unbound parameter makes the unit whole (see Binding.used)."""
        for binding in self._bindings:
            binding.used = used

    def binding_at(self, offset: int) -> Binding:
        """The sharded parameter that has element ``offset`` of the unit."""
        return self._bindings[bisect_right(self._starts, offset) - 1]

    @property
    def aliased(self) -> bool:
        """Whether other code than the engine and the model's parameters uses the whole unit's memory."""
        with torch._C.DisableTorchFunctionSubclass():  # unbound parameters ask Python for each attribute
            for binding in self._bindings:
                if binding.exported:
                    return True
        return use_count(self.storage) > self._references

    def allocate(self) -> None:
        """Allocate the memory of the whole unit; its values are undefined until they are gathered."""
        self.storage.resize_(self.unit.padded * self.full.element_size())
        self.resident = True

    def bind(self, slots: Collection[Slot] | None = None) -> None:
        """Make the model's parameters, or ``slots`` of them, views of the whole unit, which has its values."""
        if self._unbound:
            self.bound = True
            for binding in self._bindings:
                if not binding.bound and (slots is None or binding.slot in slots):
                    binding.bind()
                    self._unbound -= 1

    def unbind(self) -> None:
        """Make the model's parameters refuse to be used."""
        if self.bound:
            self.bound = False
            self._unbind()

    def _unbind(self) -> None:
        for binding in self._bindings:
            binding.unbind()
        self._unbound = len(self._bindings)

    def reshard(self) -> bool:
        """Free the memory of the whole unit and return True, unless other code uses it."""
        self.unbind()
        if self.aliased:
            return False
        self._free()
        return True

    def forget(self) -> None:
        """Give sharded parameters up: they become ordinary ones of no values, and the unit's whole memory is freed."""
        self.reshard()
        for binding in self._bindings:
            binding.forget()
        self._bindings.clear()

    def _free(self) -> None:
        """Free the memory; if numpy has shared it, so that it can never be resized, use a new tensor instead."""
        if not self.storage.resizable():
            self._remember(torch.empty_like(self.full))
        self.storage.resize_(0)
        self.resident = self.unit.padded == 0

    def _remember(self, full: Tensor) -> None:
        """Use ``full`` as the whole unit, and count the engine's references to its memory."""
        self.full, self.storage = full, full.untyped_storage()
        for binding in self._bindings:
            binding.view = binding.slot.view(full)
        self._references = use_count(self.storage)


def use_count(storage: torch.UntypedStorage) -> int:
    """The number of tensors and handles that share the storage; torch has no public name for it."""
    return int(torch._C._storage_Use_Count(storage._cdata))
