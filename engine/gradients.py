"""Gradient reduction: ranks send gradients to the owners, which add them in the order of the leaves."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine.backward import Backward, Coordinator, may_nest
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.comm.shards import InFlight, gather_shards
from zerobench.engine.comm.wire import WireFormat
from zerobench.engine.layout import Slot, neighbours
from zerobench.engine.ops.folding import fold
from zerobench.engine.ops.packing import pack
from zerobench.engine.state.unit import UnitState

# The maximum number of buckets in flight; more would only use more memory.
_IN_FLIGHT = 2

#: The running backwards of all engines, as autograd counts them.
_tasks: set[int] = set()


def in_backward_of_engine() -> bool:
    """Whether the backward that calls is one of an engine."""
    return torch._C._current_graph_task_id() in _tasks


@dataclass
class _Bucket:
    """A slice of every rank's shard of one unit, in flight: row r of ``received`` comes from rank r."""

    state: UnitState
    start: int
    stop: int
    sent: Tensor
    received: Tensor
    work: Any


class GradientReducer:
    """Carries gradients from backward to the owners' accumulators.

    The protocol is the same on all ranks, even if their graphs differ:

    - A hook receives each parameter's gradient when autograd has finished it. A unit is *ready* when all its parameters
      have their gradients. Units are launched in one fixed order, the reverse of the model's order with the persistent
      unit last. A unit is launched as soon as it is ready and all units before it are launched. Small neighbouring
      units form a batch, which is launched when its last unit is ready. If units are not ready when backward ends
      (unused parameters), they are launched then, with -0 for missing gradients. So collectives match between ranks
      even if their graphs differ. If parameters are sharded, gathers come between the reductions, and the ranks agree
      on the order of both (see Agreement).
    - To launch a unit, a rank packs its gradients into one flat buffer, encodes them (see WireFormat) and starts an
      all-to-all for each bucket: rank r receives all ranks' values of its own shard. Communication adds nothing.
    - When a bucket has arrived, the owner folds it into its accumulator in rank order (see ops/folding.py). If every
      rank steps the whole unit, the last micro-step all-gathers the owners' results while backward runs.
    - Under the *boundary* schedule a gradient is first added to a local accumulator, and only the last micro-step of
      a step launches units.

    A reentrant checkpoint runs backward within backward and may finish a parameter's gradient more than once. So units
    are launched during backward only if the graph of the first backward rules this out, or if a complete backward ran
    without it. If a model starts it later, the engine raises an error.
    """

    #: Whether a step gives zeros to trainable parameters without a gradient; if not, it does not touch them.
    gives_zeros = False

    def __init__(
        self,
        states: list[UnitState],
        ranks: Ranks,
        coordinator: Coordinator,
        wire: WireFormat,
        *,
        bucket: int,
        together: int,
        every_micro_step: bool,
        overlap: bool,
        gather_bucket: int,
    ) -> None:
        trainable = [state for state in reversed(states) if state.unit.trainable]
        self.states = sorted(trainable, key=lambda state: state.unit.persistent)  # it has parameters of all blocks
        trained = [sum(slot.numel for slot in state.unit.slots) for state in self.states]
        self._ends = neighbours(trained, together)  # the ends of the batches
        self.ranks, self.wire, self.bucket = ranks, wire, bucket
        self.gather_bucket = gather_bucket
        self.every_micro_step, self.overlap, self._coordinator = every_micro_step, overlap, coordinator
        self.active: list[bool] = [False] * sum(len(state.unit.slots) for state in self.states)
        self._flying: deque[_Bucket] = deque()
        self._completing = InFlight()
        self._hooks = []
        self._position: dict[nn.Parameter, int] = {}
        for position, state in enumerate(self.states):
            for slot in state.unit.slots:
                self._position[slot.parameter] = position
                self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]
        self._plain = False  # no backward can run within another, or none did in a complete one
        self._nests = False  # a backward ran within another
        self._backward: Backward | None = None
        self._foreign: list[nn.Parameter] = []  # that got a gradient from the backward of another engine

    def begin(self, first: bool, last: bool, loss: Tensor | None) -> None:
        """Prepare for the backward of one micro-step; a step ends with its last one, or with :meth:`complete`."""
        self._plain = self._plain or (loss is not None and not may_nest(loss))
        if first:
            self.active = self._given_zeros() if self.gives_zeros else [False] * len(self.active)
        missing = [len(state.unit.slots) for state in self.states]
        self._backward = Backward(first, last, missing)
        self._coordinator.begin_reductions(self)

    def _given_zeros(self) -> list[bool]:
        """The parameters that the step updates even if no gradient arrives."""
        given = [False] * len(self.active)
        with torch._C.DisableTorchFunctionSubclass():  # unbound parameters ask Python for each attribute
            for slot in (slot for state in self.states for slot in state.unit.slots):
                given[slot.index] = slot.parameter.requires_grad
        return given

    @property
    def backward(self) -> Backward:
        """The current backward."""
        assert self._backward is not None
        return self._backward

    @property
    def ready(self) -> int:
        """The number of units that this rank can reduce now."""
        return self.backward.ready

    @property
    def running(self) -> bool:
        """Whether a backward of this engine runs, perhaps around the one that calls."""
        return self._backward is not None and self._backward.task is not None

    def entered(self) -> None:
        """Note the outermost backward, to distinguish it from the inner ones of a reentrant checkpoint."""
        self.backward.task = torch._C._current_graph_task_id()
        _tasks.add(self.backward.task)

    def _arrived(self, parameter: nn.Parameter) -> None:
        backward, position = self._backward, self._position[parameter]
        if backward is None or backward.task is None:
            self._take_foreign(parameter)
            return
        self._check_dense(parameter)
        if torch._C._current_graph_task_id() != backward.task:
            self._nested(position)
        backward.missing[position] -= 1
        if not self.overlap or not self._plain or self._nests:
            return
        before = backward.finished
        while backward.finished < len(self.states) and backward.missing[backward.finished] == 0:
            backward.finished += 1
        if backward.finished == before:
            return
        ready = self._ends[bisect_right(self._ends, backward.finished) - 1]
        if ready > backward.ready:
            backward.ready = ready
            self._coordinator.offer()

    def _check_dense(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise RuntimeError(
                f"the gradient of {self._name(parameter)!r} is sparse, which is not offered; use sparse=False"
            )

    def check_own(self) -> None:
        """Refuse to begin with gradients from the backward of another engine.

        Raises:
            RuntimeError: they have not been cleared.
        """
        left = next((each for each in self._foreign if each.grad is not None), None)
        if left is not None:
            raise RuntimeError(
                f"{self._name(left)!r} has a gradient from the backward of another engine, whose loss depends on it; "
                "call zero_grad() of the model before this backward"
            )
        self._foreign.clear()

    def adopt(self) -> bool:
        """Give gradients from the backward of another engine to the next micro-step; whether there are any."""
        found = any(each.grad is not None for each in self._foreign)
        self._foreign.clear()
        return found

    def _take_foreign(self, parameter: nn.Parameter) -> None:
        """Leave a gradient from another engine's backward to :meth:`check_own`; refuse any other backward's."""
        if in_backward_of_engine():
            self._foreign.append(parameter)
            return
        parameter.grad = None  # the next backward would add to it
        raise RuntimeError(
            f"{self._name(parameter)!r} got a gradient from a backward that is not the engine's; call "
            "engine.backward(loss) instead of loss.backward()"
        )

    def _name(self, parameter: nn.Parameter) -> str:
        slots = self.states[self._position[parameter]].unit.slots
        return next(slot.name for slot in slots if slot.parameter is parameter)

    def _nested(self, position: int) -> None:
        if position < self.backward.launched:
            name = self.states[position].unit.name
            raise RuntimeError(
                f"a gradient of {name!r} came after the unit's gradients had been sent: a reentrant checkpoint was "
                "used that the first backward did not use; use checkpoint(..., use_reentrant=False)"
            )
        self._nests = True

    def finish(self) -> None:
        """Launch the remaining units and wait until the owners' accumulators are complete for this micro-step."""
        self.backward.ready = len(self.states)
        self._coordinator.finish_reductions()
        self._plain = self._plain or self.backward.task is not None
        self._wait()

    def complete(self) -> None:
        """End the step after a backward that was not known to be its last one. A collective."""
        self._backward = Backward(first=False, last=True, missing=[])
        for state in self.states:
            if not self.every_micro_step:
                self._send(state, state.gradient)
            elif state.unit.shard:
                state.optimizer_store.take(state.portion, 0, state.unit.shard, state.own_gradient)
                self._complete(state)
        self._wait()

    def _wait(self) -> None:
        """Wait for all that the backward has started, and forget the backward."""
        self._drain(0)
        self._completing.finish()
        _tasks.discard(self.backward.task or 0)
        self._backward = None

    def launch(self, count: int) -> None:
        """Start reducing the first ``count`` units that have not been launched yet."""
        while self.backward.launched < count:
            self._launch(self.states[self.backward.launched])
            self.backward.launched += 1

    def _launch(self, state: UnitState) -> None:
        """Pack the unit's gradients, which ends them, and send the pack if this is the micro-step for it."""
        if self.every_micro_step:
            flat = torch.empty(state.unit.padded, dtype=self.wire.packed, device=state.full.device)
            _pack(flat, state.unit.slots, self._taken(state))
            self._send(state, flat)
            return
        if self.backward.first:
            _pack(state.gradient, state.unit.slots, self._taken(state))
        else:
            _add(state.gradient, state.unit.slots, self._taken(state))
        if self.backward.last:
            self._send(state, state.gradient)

    def _taken(self, state: UnitState) -> list[Tensor | None]:
        """The gradients of the unit's parameters, removed from the parameters."""
        with torch._C.DisableTorchFunctionSubclass():  # unbound parameters ask Python for each attribute
            gradients = [slot.parameter.grad for slot in state.unit.slots]
            for slot, gradient in zip(state.unit.slots, gradients, strict=True):
                self.active[slot.index] |= gradient is not None
                slot.parameter.grad = None
        return gradients

    def _send(self, state: UnitState, flat: Tensor) -> None:
        """Start an all-to-all for each bucket of ``flat`` ([world * shard])."""
        rows = flat.view(self.ranks.world, state.unit.shard)
        for start, stop in state.unit.buckets(self.bucket):
            sent = self.wire.encode(rows[:, start:stop])
            received = sent if self.ranks.world == 1 else torch.empty_like(sent)
            work = self.ranks.all_to_all(received.view(-1), sent.view(-1))
            self._flying.append(_Bucket(state, start, stop, sent, received, work))
            self._drain(_IN_FLIGHT)

    def _drain(self, allowed: int) -> None:
        """Fold buckets, oldest first, until at most ``allowed`` are in flight."""
        while len(self._flying) > allowed:
            bucket = self._flying.popleft()
            bucket.work.wait()
            state, start, stop = bucket.state, bucket.start, bucket.stop
            total, contributions = state.accumulator(start, stop), self.wire.decode(bucket.received)
            fold(total, contributions, first=self.backward.first or not self.every_micro_step)
            if self.backward.last:
                state.optimizer_store.take(state.portion, start, stop, total)
                if stop == state.unit.shard:
                    self._complete(state)

    def _complete(self, state: UnitState) -> None:
        """This rank's part of the gradient is final: fetch the others' if this rank steps the whole unit."""
        if state.extent != state.own and self.ranks.world > 1:
            whole = state.gradient, state.own_gradient
            self._completing.add(gather_shards(state.unit, *whole, self.ranks, self.gather_bucket))

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()


def _pack(flat: Tensor, slots: tuple[Slot, ...], gradients: list[Tensor | None]) -> None:
    """Write the gradients to their slots, and -0 to padding and to slots without a gradient: it changes no sum."""
    given = [(slot, gradient) for slot, gradient in zip(slots, gradients, strict=True) if gradient is not None]
    packed = [(slot, gradient) for slot, gradient in given if gradient.stride() == slot.stride]
    pack(flat, [gradient for _, gradient in packed], [slot.start for slot, _ in packed])
    for slot, gradient in given:
        if gradient.stride() != slot.stride:  # its elements are in a different order
            slot.view(flat).copy_(gradient)


def _add(accumulator: Tensor, slots: tuple[Slot, ...], gradients: list[Tensor | None]) -> None:
    """Add the gradients to their slots, in fp32, rounded once to the accumulator's dtype."""
    for slot, gradient in zip(slots, gradients, strict=True):
        if gradient is None:
            continue
        view = slot.view(accumulator)
        if accumulator.dtype == torch.float32:
            view.add_(gradient)
        else:
            view.copy_(view.float().add_(gradient))
