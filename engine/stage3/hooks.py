"""The hooks that detect uses of sharded parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine.fast_paths import nothing
from zerobench.engine.outputs import tensors_in
from zerobench.engine.stage3.unshard import Unsharder
from zerobench.engine.state.resharded import Binding
from zerobench.engine.state.unit import UnitState


class ParameterHooks:
    """Hooks a model so that its sharded parameters are whole during every use.

    Four kinds of use, each detected exactly:

    - **A module's forward.** The module at a unit's root pins the unit from its pre-forward hook to its forward hook.
      A checkpoint's recomputation is a forward too.
    - **An attribute access** (a tied weight, or a root that uses a submodule's weight without calling it), or a step of
      `parameters()`. The module's parameter table detects the unit, and the innermost running forward pins it. If a
      forward returns a parameter itself, the forward around it pins the unit, too.
    - **A parameter that code has kept**, as in a list, a closure or the context of a custom autograd function. Torch
      asks its class at each call (see Resharded), and a forward or a backward pins the unit for the call.
    - **Autograd.** A node saves a sharded parameter's address, not its memory (saved-tensor hooks). When backward needs
      it, the unit is gathered and pinned until the tensor given to the node is freed. If a node saves a complex or a
      negated view, it saves the view itself, which keeps the unit whole. Of a sparse matrix whose values are a
      parameter's it saves a copy.

    The hooks add no function to the graph and change no order of additions in it, so gradients keep their bits.
    """

    def __init__(self, module: nn.Module, states: list[UnitState], unsharder: Unsharder) -> None:
        self.module, self.unsharder = module, unsharder
        self._units = unsharder.by_storage
        self._scopes: list[_Scope] = []
        self._hooks: list[Any] = []
        self._unpacked: dict[int, weakref.ref[Tensor]] = {}  # the tensors that backward was given and holds
        self._numbers = count()
        self._tables: list[nn.Module] = []
        self._state_of = {id(slot.parameter): state for state in states for slot in state.unit.slots}
        roots: dict[nn.Module, list[UnitState]] = {}
        for state in states:
            roots.setdefault(state.unit.module, []).append(state)
        for root, units in roots.items():
            self._watch_forward(root, units)
        for submodule in _outside(module, set(roots), self._state_of):
            self._watch_alone(submodule)
        self._states = states
        for state in states:
            state.set_used(partial(self._used, state))
        for submodule in module.modules():
            if any(id(p) in self._state_of for p in submodule._parameters.values()):
                submodule._parameters = _Table(submodule._parameters, self)
                self._tables.append(submodule)

    def _watch_forward(self, root: nn.Module, units: list[UnitState]) -> None:
        def enter(*_: Any) -> None:
            if not self._scopes:
                self.unsharder.begin("alone")
            self._scopes.append(_Scope(list(units), self._saving()))  # first: leave() runs even if the gather fails
            self.unsharder.pin(units)

        def leave(_: nn.Module, __: Any, output: Any) -> None:
            self._end_scope(output)
            if not self._scopes:
                self.unsharder.finish()

        self._hooks.append(root.register_forward_pre_hook(_OwnHook(enter)))
        self._hooks.append(root.register_forward_hook(_OwnHook(leave), always_call=True))

    def _watch_alone(self, module: nn.Module) -> None:
        """Open a scope for a forward that the caller began itself, such as that of an encoder: not the engine's."""
        opened: list[bool] = []

        def enter(*_: Any) -> None:
            opened.append(not self._scopes)
            if opened[-1]:
                self.unsharder.begin("alone")
                self._scopes.append(_Scope([], self._saving()))

        def leave(*_: Any) -> None:
            if opened and opened.pop():
                self._end_scope()
                self.unsharder.finish()

        self._hooks.append(module.register_forward_pre_hook(_OwnHook(enter)))
        self._hooks.append(module.register_forward_hook(_OwnHook(leave), always_call=True))

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The context of the whole model's forward; the pass ends with it if gradients are disabled."""
        training = torch.is_grad_enabled()
        self.unsharder.begin("training" if training else "evaluation")
        with self._scope(self._saving()), _explaining():
            yield
        if not training:
            self.unsharder.finish()

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The context of backward: the outermost scope for the units that a recomputation uses."""
        self.unsharder.begin("training")
        with self._scope(None):
            yield

    @contextmanager
    def _scope(self, hooks: Any) -> Iterator[None]:
        """A scope of no module; it also ends the scopes inside it if an interrupt has skipped their leave()."""
        depth = len(self._scopes)
        self._scopes.append(_Scope([], hooks))
        try:
            yield
        finally:
            while len(self._scopes) > depth:
                self._end_scope()

    @property
    def _running(self) -> bool:
        """Whether a forward or a backward runs, so that the use of a parameter counts.

        If an observer of the engine's communication (a profiler, a meter) lists parameters, this does not count.
        """
        return bool(self._scopes) and not self.unsharder.communicating

    def use(self, tensor: Any) -> None:
        """Pin the unit of a sharded parameter used inside a forward until the innermost scope ends."""
        state = self._state_of.get(id(tensor))
        if state is None or not self._running:
            return
        for scope in self._scopes:
            if state in scope.pinned:
                return
        self._scopes[-1].pinned.append(state)
        self.unsharder.pin([state])

    @contextmanager
    def _used(self, state: UnitState) -> Iterator[bool]:
        """Pin the unit for a call with one of its parameters, if a forward or a backward runs; whether one does."""
        if not self._running:
            yield False
            return
        self.unsharder.pin([state])
        try:
            yield True
        finally:
            self.unsharder.unpin([state])

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a client's own use of whole parameters: a backward after it has their values, as after a forward."""
        hooks = self._saving()
        try:
            with _explaining():
                yield
        finally:
            if hooks is not None:
                hooks.__exit__()

    def _saving(self) -> Any:
        """Enter the engine's saved-tensor hooks; None if hooks are active already (these, or a checkpoint's).

        Those of another engine know nothing of these parameters.
        """
        in_force = _hooks_in_force()
        owner = None if in_force is None else getattr(in_force[0], "__self__", None)
        others = in_force is not None and not isinstance(owner, ParameterHooks)
        if not torch.is_grad_enabled() or owner is self or others:
            return None
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        return hooks

    def _end_scope(self, output: Any = None) -> None:
        """End the innermost forward; the one around it uses the parameters among its output.

        A view of a parameter in the output needs no use: it keeps the memory itself.
        """
        scope = self._scopes.pop()
        in_force = _hooks_in_force()  # not the engine's if an interrupted backward removed them
        if in_force and scope.hooks and in_force[0] is scope.hooks.pack_hook:
            scope.hooks.__exit__()
        for tensor in tensors_in(output):
            self.use(tensor)
        self.unsharder.unpin(scope.pinned)

    def _pack(self, tensor: Tensor) -> Any:
        values = _values(tensor)
        state = None if values is None else self._units.get(values.untyped_storage()._cdata)
        if state is not None and values is not tensor:
            return tensor.detach().clone()  # a matrix whose values are a parameter's
        if state is None or tensor.dtype != state.dtype or tensor.is_neg():
            # An address does not record how to read the memory. A node that saves its own output would refer to itself,
            # so that a graph without a backward is never freed: a detached tensor refers to no node.
            return tensor if tensor.grad_fn is None else tensor.detach()
        binding = state.binding_at(int(tensor.storage_offset()))
        return _Address(
            state, tensor.size(), tensor.stride(), int(tensor.storage_offset()), binding, binding.parameter_version
        )

    def _unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Address):
            return packed  # type: ignore[no-any-return]
        state = packed.state
        packed.check_version()
        self.unsharder.pin([state])
        tensor = state.full.as_strided(packed.size, packed.stride, packed.offset)
        number = next(self._numbers)

        def freed(_: Any) -> None:
            del self._unpacked[number]
            self.unsharder.unpin([state])

        self._unpacked[number] = weakref.ref(tensor, freed)
        return tensor

    def close(self) -> None:
        """Remove the hooks and tables from the model."""
        for hook in self._hooks:
            hook.remove()
        for submodule in self._tables:
            submodule._parameters = dict(submodule._parameters)
        for state in self._states:
            state.set_used(None)
        self.unsharder.close()


def _outside(module: nn.Module, roots: set[nn.Module], states: Mapping[int, UnitState]) -> list[nn.Module]:
    """The modules that no root's forward contains, and those that use a unit of another root: a tied weight."""
    covered = {inner: root for root in roots if root is not module for inner in root.modules()}
    found = []
    for submodule in module.modules():
        own = [each for each in submodule._parameters.values() if each is not None]
        used = {states[id(each)].unit.module for each in own if id(each) in states}
        if submodule not in roots and (submodule not in covered or used - {covered[submodule]}):
            found.append(submodule)
    return found


@contextmanager
def _explaining() -> Iterator[None]:
    """Name the cause if torch.func refuses to run among saved-tensor hooks."""
    try:
        yield
    except RuntimeError as error:
        if "saved tensor hooks" in str(error):
            error.add_note(
                "Stage 3 gathers parameters in backward by saved-tensor hooks, so its forwards, and GatheredParameters "
                "with gradients enabled, cannot use grad and vjp of torch.func or functions built on them; use "
                "torch.autograd.grad(..., create_graph=True), or stage 2."
            )
        raise


def _values(tensor: Tensor) -> Tensor | None:
    """The tensor that has the memory of a tensor's values; None if torch gives no access to it."""
    if tensor.layout is torch.strided or tensor.layout is torch.jagged:
        return tensor
    if tensor.layout is torch.sparse_coo:
        return tensor.detach()._values()
    return None if tensor.is_mkldnn else tensor.detach().values()


def _hooks_in_force() -> Any:
    """Autograd's current pack and unpack hooks for saved tensors; torch has no public name for them."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


@dataclass(frozen=True)
class _OwnHook:
    """A hook of the engine on a module; a copy of the module, also one in a file, has one that does nothing."""

    hook: Callable[..., None]

    def __call__(self, *args: Any) -> None:
        self.hook(*args)

    def __reduce__(self) -> Any:
        return _OwnHook, (nothing,)


@dataclass
class _Scope:
    """A running forward: the units that it pins, and the saved-tensor hooks that it entered."""

    pinned: list[UnitState]
    hooks: Any


class _Address:
    """The object that autograd saves for backward instead of a sharded parameter's memory."""

    __slots__ = ("binding", "offset", "size", "state", "stride", "version")

    def __init__(
        self, state: UnitState, size: torch.Size, stride: tuple[int, ...], offset: int, binding: Binding, version: int
    ) -> None:
        self.state, self.size, self.stride, self.offset = state, size, stride, offset
        self.binding, self.version = binding, version

    def check_version(self) -> None:
        """Raise the error that autograd raises of a saved tensor below stage 3.

        Raises:
            RuntimeError: the parameter was edited since.
        """
        if self.binding.parameter_version != self.version:
            raise RuntimeError(
                f"parameter {self.binding.name!r}, which backward needs, has been modified by an inplace operation "
                "since the forward used it: edit it before its use, or after the backward"
            )


class _Table(dict[str, Any]):
    """A module's ``_parameters``: reading a sharded parameter, by name or in iteration, uses its unit."""

    def __init__(self, table: dict[str, Any], hooks: ParameterHooks) -> None:
        super().__init__(table)
        self._hooks = hooks

    def __getitem__(self, name: str) -> Any:
        return self._used(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._used(super().get(name, default))

    def values(self) -> Iterator[Any]:  # type: ignore[override]  # uses each when it is reached
        return (self._used(parameter) for parameter in super().values())

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        return ((name, self._used(parameter)) for name, parameter in super().items())

    def _used(self, parameter: Any) -> Any:
        self._hooks.use(parameter)
        return parameter

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copied model has ordinary tables
