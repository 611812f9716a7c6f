"""The training states of one unit on one rank: what is held, in which dtype, over which part of the unit."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.layout import Slot, Unit
from zerobench.engine.placement import Placement
from zerobench.engine.state.stores import Home, Place


class UnitState:
    """Parameters, gradient and optimizer state of one unit.

    Each state is kept over the whole unit (``unit.padded`` elements) or over this rank's shard (``unit.shard``):

    - ``full``: parameters in the compute dtype over the whole unit; the model's parameters are views of it. Where
      parameters are sharded its storage is freed while the unit is not in use (the views stay valid, their memory
      comes and goes), and ``shard`` is memory of its own; elsewhere ``shard`` is a view of ``full``.
    - ``gradient``: the accumulator. Whole or shard; ``own_gradient`` is this rank's part of it. Empty where nothing is
      to be kept between micro-steps, and the sum goes to ``place`` as soon as it is made.
    - ``master`` and ``optimizer``: fp32. Whole or shard. In fp32 training the master is the parameter's own memory,
      unless one of them is kept elsewhere.

    ``place`` and ``home`` keep what this rank owns: ``place`` gradient sum, master and optimizer states, ``home`` the
    parameters. Where they keep it in memory it is also here, on the host or on the device; else these are empty.

    Padding is never read into a result; it may hold anything.
    """

    place: Place
    home: Home

    def __init__(
        self,
        unit: Unit,
        ranks: Ranks,
        placement: Placement,
        dtype: torch.dtype,
        accumulator: torch.dtype,
        device: torch.device,
        *,
        accumulates: bool,
        apart: bool,
    ) -> None:
        self.unit = unit
        self.dtype = dtype
        #: Whether the fp32 master is memory of its own, apart from the parameter.
        self.has_master_copy = apart or dtype != torch.float32
        self.sharded = placement.parameters and not unit.persistent
        self.own = slice(ranks.rank * unit.shard, (ranks.rank + 1) * unit.shard)
        source = torch.zeros(unit.padded, dtype=torch.float32, device=device)
        for slot in unit.slots:
            slot.view(source).copy_(slot.parameter.detach())
        ranks.broadcast(source)
        self.full = source if dtype == torch.float32 else source.to(dtype)
        self.shard = self.full[self.own].clone() if self.sharded else self.full[self.own]
        for slot in unit.slots:
            slot.parameter.grad = None  # one from before would be added to the first step's
            slot.parameter.data = slot.view(self.full)
        #: The part of the unit over which the optimizer steps here.
        self.extent = self.own if placement.optimizer else slice(0, unit.padded)
        self.optimizer: dict[str, Tensor] = {}
        if unit.trainable:
            kept = unit.padded if not placement.gradients else unit.shard if accumulates else 0
            self.gradient = torch.zeros(kept, dtype=accumulator, device=device)
            self.own_gradient = self.gradient if placement.gradients else self.gradient[self.own]
            self.master = self._master(source, placement)
        self.storage = self.full.untyped_storage()
        self._aliases = _use_count(self.storage)
        if self.sharded:
            self.release()

    def _master(self, source: Tensor, placement: Placement) -> Tensor:
        if self.has_master_copy:
            return source[self.extent].clone()
        return self.shard if placement.optimizer else self.full

    def accumulator(self, start: int, stop: int) -> Tensor:
        """What sums up elements [start, stop) of the shard; new memory where none is kept between micro-steps."""
        if self.own_gradient.numel() == self.unit.shard:
            return self.own_gradient[start:stop]
        return self.gradient.new_empty(stop - start)

    def clear_padding(self, values: Tensor, start: int) -> None:
        """Zero what is no parameter's element in ``values``, which are the shard's from ``start`` on."""
        first = self.own.start + start
        for lo, hi in self.unit.padding(first, first + values.numel()):
            values[lo:hi].zero_()

    @property
    def resident(self) -> bool:
        """Whether the whole unit's memory is there (its values may still be on their way)."""
        return self.storage.nbytes() > 0 or self.unit.padded == 0

    @property
    def aliased(self) -> bool:
        """Whether a tensor besides the model's parameters shares the whole unit's memory."""
        return _use_count(self.storage) > self._aliases

    def allocate(self) -> None:
        """Get the memory of the whole unit; its values are undefined until they are gathered."""
        self.storage.resize_(self.unit.padded * self.full.element_size())

    def release(self) -> None:
        """Give the memory of the whole unit back; the shard stays."""
        self.storage.resize_(0)

    def state_of(self, slot: Slot, state: Tensor) -> list[tuple[int, int, Tensor]]:
        """The parts of one parameter in an optimizer state or master, as (start, stop within the parameter, values)."""
        lo, hi = max(self.extent.start, slot.start), min(self.extent.stop, slot.start + slot.numel)
        if lo >= hi:
            return []
        return [(lo - slot.start, hi - slot.start, state[lo - self.extent.start : hi - self.extent.start])]


def _use_count(storage: torch.UntypedStorage) -> int:
    """How many tensors and handles share the storage; torch has no public name for it."""
    return int(torch._C._storage_Use_Count(storage._cdata))
