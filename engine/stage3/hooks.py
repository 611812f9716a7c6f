"""Access: the hooks through which sharded parameters are touched, held and dropped."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine.stage3.unshard import Gatherer
from zerobench.engine.state.unit import UnitState


class Access:
    """Watches a model so that its sharded parameters are whole whenever they are used.

    Three kinds of use, each exact:

    - **A module's forward.** The module at a unit's root holds the unit from its pre-forward hook to its forward hook.
      A checkpoint's recomputation is a forward too.
    - **An attribute access** (a tied weight, or a root that uses a submodule's weight without calling it), or a step of
      `parameters()`. The module's parameter table says which unit is touched; the innermost forward that is running
      holds it.
    - **Autograd.** A node saves a sharded parameter's address, not its memory (saved-tensor hooks). When backward needs
      it, the unit is gathered and held for as long as the tensor handed to the node lives. A complex or a negated view
      of the memory is saved itself, and keeps the unit whole meanwhile.

    No identity function is put into the graph and no order of additions in it changes, so gradients keep their bits.
    """

    def __init__(self, module: nn.Module, states: list[UnitState], gatherer: Gatherer) -> None:
        self.module, self.gatherer = module, gatherer
        self._by_storage = {state.full.untyped_storage()._cdata: state for state in states}
        self._scopes: list[_Scope] = []
        self._hooks: list[Any] = []
        self._tables: list[nn.Module] = []
        home = {slot.parameter: state for state in states for slot in state.unit.slots}
        roots: dict[nn.Module, list[UnitState]] = {}
        for state in states:
            roots.setdefault(state.unit.module, []).append(state)
        for root, units in roots.items():
            self._watch_forward(root, units)
        for submodule in module.modules():
            if any(p in home for p in submodule._parameters.values()):
                submodule._parameters = _Table(submodule._parameters, home, self)
                self._tables.append(submodule)

    def _watch_forward(self, root: nn.Module, units: list[UnitState]) -> None:
        def enter(*_: Any) -> None:
            if not self._scopes:
                self.gatherer.begin("alone")
            self._scopes.append(_Scope(list(units), self._saving()))  # first: leave() comes even if the gather fails
            self.gatherer.hold(units)

        def leave(*_: Any) -> None:
            self._end_scope()
            if not self._scopes:
                self.gatherer.finish()

        self._hooks.append(root.register_forward_pre_hook(enter))
        self._hooks.append(root.register_forward_hook(leave, always_call=True))

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around the whole model's forward; without gradients it is also the end of the pass."""
        training = torch.is_grad_enabled()
        self.gatherer.begin("training" if training else "evaluation")
        with self._scope(self._saving()):
            yield
        if not training:
            self.gatherer.finish()

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around backward: the outermost scope of what recomputation touches."""
        self.gatherer.begin("training")
        with self._scope(None):
            yield

    @contextmanager
    def _scope(self, hooks: Any) -> Iterator[None]:
        """A scope that no module brings; it ends those that are left within, for an interrupt passes leave() by."""
        depth = len(self._scopes)
        self._scopes.append(_Scope([], hooks))
        try:
            yield
        finally:
            while len(self._scopes) > depth:
                self._end_scope()

    def touch(self, state: UnitState) -> None:
        """A parameter is reached inside a forward: hold its unit until the innermost scope ends.

        Who watches the engine communicate (a profiler, a meter) may list parameters, and uses none.
        """
        if not self._scopes or self.gatherer.communicating:
            return
        if not any(state in scope.held for scope in self._scopes):
            self._scopes[-1].held.append(state)
            self.gatherer.hold([state])

    def _saving(self) -> Any:
        """Our saved-tensor hooks, entered; None where hooks are in force already (ours, or a checkpoint's own)."""
        if not torch.is_grad_enabled() or _hooks_in_force() is not None:
            return None
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        return hooks

    def _end_scope(self) -> None:
        scope = self._scopes.pop()
        in_force = _hooks_in_force()  # no longer ours where an interrupt ended a backward, which undoes its own
        if in_force and scope.hooks and in_force[0] is scope.hooks.pack_hook:
            scope.hooks.__exit__()
        self.gatherer.drop(scope.held)

    def _pack(self, tensor: Tensor) -> Any:
        state = self._by_storage.get(tensor.untyped_storage()._cdata)
        if state is None or tensor.dtype != state.dtype or tensor.is_neg():
            return tensor  # an address says nothing of how the memory is read
        return _Address(state, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Address):
            return packed  # type: ignore[no-any-return]
        state = packed.state
        self.gatherer.hold([state])
        tensor = state.full.as_strided(packed.size, packed.stride, packed.offset)
        weakref.finalize(tensor, self.gatherer.drop, [state])
        return tensor

    def close(self) -> None:
        """Take the hooks and tables off the model."""
        for hook in self._hooks:
            hook.remove()
        for submodule in self._tables:
            submodule._parameters = dict(submodule._parameters)
        self.gatherer.close()


def _hooks_in_force() -> Any:
    """Pack and unpack hook by which autograd saves tensors now; torch has no public name for it."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


@dataclass
class _Scope:
    """A forward that is running: the units it holds, and the saved-tensor hooks it brought with it."""

    held: list[UnitState]
    hooks: Any


class _Address:
    """What is saved for backward instead of a sharded parameter's memory."""

    __slots__ = ("offset", "size", "state", "stride")

    def __init__(self, state: UnitState, size: torch.Size, stride: tuple[int, ...], offset: int) -> None:
        self.state, self.size, self.stride, self.offset = state, size, stride, offset


class _Table(dict[str, Any]):
    """A module's ``_parameters``: reading a sharded parameter, by name or one after the other, touches its unit."""

    def __init__(self, table: dict[str, Any], home: dict[nn.Parameter, UnitState], access: Access) -> None:
        super().__init__(table)
        self._home, self._access = home, access

    def __getitem__(self, name: str) -> Any:
        return self._touched(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._touched(super().get(name, default))

    def values(self) -> Iterator[Any]:  # type: ignore[override]  # each is touched when it is reached, not before
        return (self._touched(parameter) for parameter in super().values())

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        return ((name, self._touched(parameter)) for name, parameter in super().items())

    def _touched(self, parameter: Any) -> Any:
        state = self._home.get(parameter)
        if state is not None:
            self._access.touch(state)
        return parameter

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy of the model is an ordinary model
