"""The training states of one unit on one rank."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.state.portion import Portion
from zerobench.engine.state.resharded import Binding
from zerobench.engine.state.stores import OptimizerStore, ParameterStore


class UnitState:
    """Parameters and gradient of one unit while it is trained, and the stores of the states that this rank owns.

    - ``full``: parameters in the compute dtype over the whole unit, ``unit.padded`` elements; the model's parameters
      are views of it. If parameters are sharded its memory is freed while nothing uses the unit (see below).
    - ``gradient``: the accumulator, over the whole unit or this rank's shard; ``own_gradient`` is this rank's part of
      it. It is empty if nothing is kept between micro-steps, and the sum goes to ``optimizer_store`` at once.
    - ``optimizer_store`` owns the final gradient sum, the fp32 master and the optimizer states, over the portion's
      extent; ``parameter_store`` owns this rank's shard of the parameters.

    The memory of a sharded unit: :meth:`allocate` gets it, a gather fills it, :meth:`bind` makes the model's parameters
    views of it, :meth:`unbind` makes them unreadable again, :meth:`reshard` gives the memory back unless somebody still
    uses it. Parameters that are not bound refuse every use (see Resharded).

    Padding is never read into a result; it may hold anything.

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
        for slot in self.unit.slots:
            slot.parameter.grad = None  # one from before would be added to the first step's
            if not self.sharded:
                slot.parameter.data = slot.view(full)
        sharded = self.unit.slots if self.sharded else ()
        self._bindings = [Binding(slot, full, lambda: self.storage) for slot in sharded]
        self._remember(full)
        for binding in self._bindings:
            binding.unbind()
        if self.sharded:
            self._free()

    def accumulator(self, start: int, stop: int) -> Tensor:
        """The memory that sums up elements [start, stop) of the shard; new if none is kept between micro-steps."""
        if self.own_gradient.numel() == self.unit.shard:
            return self.own_gradient[start:stop]
        return self.gradient.new_empty(stop - start)

    @property
    def resident(self) -> bool:
        """Whether the whole unit's memory is there (its values may still be on their way)."""
        return self.storage.nbytes() > 0 or self.unit.padded == 0

    @property
    def aliased(self) -> bool:
        """Whether somebody besides the engine and the model's parameters uses the whole unit's memory."""
        with torch._C.DisableTorchFunctionSubclass():  # unbound parameters would ask Python for each attribute
            exported = any(binding.exported for binding in self._bindings)
        return exported or _use_count(self.storage) > self._references

    def allocate(self) -> None:
        """Get the memory of the whole unit; its values are undefined until they are gathered."""
        self.storage.resize_(self.unit.padded * self.full.element_size())

    def bind(self) -> None:
        """Make the model's parameters views of the whole unit, which has its values."""
        if not self.bound:
            self.bound = True
            for binding in self._bindings:
                binding.bind()

    def unbind(self) -> None:
        """Make the model's parameters refuse to be used."""
        if self.bound:
            self.bound = False
            for binding in self._bindings:
                binding.unbind()

    def reshard(self) -> bool:
        """Give the memory of the whole unit back, and return True, unless somebody else uses it."""
        self.unbind()
        if self.aliased:
            return False
        self._free()
        return True

    def _free(self) -> None:
        """Free the memory; if it was lent to numpy, which forbids to resize it for ever, leave it and take another."""
        if not self.storage.resizable():
            self._remember(torch.empty_like(self.full))
        self.storage.resize_(0)

    def _remember(self, full: Tensor) -> None:
        """Take ``full`` as the whole unit, and count the references to its memory that are the engine's."""
        self.full, self.storage = full, full.untyped_storage()
        for binding in self._bindings:
            binding.view = binding.slot.view(full)
        self._references = _use_count(self.storage)


def _use_count(storage: torch.UntypedStorage) -> int:
    """The number of tensors and handles that share the storage; torch has no public name for it."""
    return int(torch._C._storage_Use_Count(storage._cdata))
