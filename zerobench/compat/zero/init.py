"""zero.Init: constructs a model shard by shard; and OnDevice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import nn

from zerobench.compat.comm.comm import init_distributed
from zerobench.compat.zero.constructors import Constructors
from zerobench.compat.zero.meeting import meet
from zerobench.compat.zero.status import mark
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.state.partitioned import Partition, gathered, partition


class _Interruption:
    """Whether the contexts are interrupted, so that what is constructed stays plain."""

    active = False


def shutdown_init_context() -> None:
    """Interrupt zero.Init: the parameters that are constructed from now on are plain."""
    _Interruption.active = True


def restore_init_context() -> None:
    """Let zero.Init go on."""
    _Interruption.active = False


class Init:
    """Within the context each rank keeps only its shard of every parameter that is constructed; a collective.

    A module's own parameters are sharded at the end of its constructor, so at most those of the constructors that run
    are whole. All ranks take rank 0's values. Afterwards a parameter is whole inside GatheredParameters only, until an
    engine takes it over, and while a constructor uses it (see Constructors). ``Module.apply`` gathers the own
    parameters of each module for its function, whose edits on rank 0 persist.

    Args:
        module: shards the parameters of this module at once.
        enabled: False makes the context do nothing.
        dtype: of the parameters and buffers that are constructed; None for those that the constructors choose.
        args, kwargs: DeepSpeed's other arguments, which have no effect: parameters keep their device.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        *args: Any,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        self.enabled, self._dtype = enabled, dtype
        self._uses = Constructors()
        self._running: dict[int, int] = {}  # constructors of a module that run, by its id
        self._constructors: dict[type[nn.Module], tuple[Any, Any]] = {}  # the watched one and its own
        if module is not None and enabled:
            self._begin()
            for part in module.modules():
                self._partition(part)

    def _begin(self) -> None:
        init_distributed()
        meet()
        self._ranks = Ranks.of(None)

    def __enter__(self) -> None:
        if not self.enabled:
            return
        self._begin()
        restore_init_context()
        for kind in [nn.Module, *_subclasses(nn.Module)]:
            self._watch(kind)
        self._watch_classes()
        self._apply: Any = nn.Module.apply
        setattr(nn.Module, "apply", _apply_gathered)  # noqa: B010  # mypy allows no assignment to a method
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype or self._default)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled:
            restore_init_context()
            torch.set_default_dtype(self._default)
            setattr(nn.Module, "apply", self._apply)  # noqa: B010
            self._unwatch()

    def _watch_classes(self) -> None:
        """Watch the classes, too, that are defined in the context, such as those of a library that loads its models
        when they are first asked for."""
        self._defined = vars(nn.Module).get("__init_subclass__")

        def defined(kind: type[Any], /, **kwargs: Any) -> None:
            super(nn.Module, kind).__init_subclass__(**kwargs)  # type: ignore[misc]  # kind is a class of modules
            self._watch(kind)

        setattr(nn.Module, "__init_subclass__", classmethod(defined))  # noqa: B010  # mypy knows no such method

    def _unwatch(self) -> None:
        """Give each class its own constructor back, unless a decorator of the class has wrapped the watched one."""
        if self._defined is None:
            del nn.Module.__init_subclass__
        else:
            setattr(nn.Module, "__init_subclass__", self._defined)  # noqa: B010
        for kind, (watched, constructor) in self._constructors.items():
            if vars(kind).get("__init__") is watched:
                kind.__init__ = constructor  # type: ignore[method-assign]
        self._constructors.clear()

    def _watch(self, kind: type[nn.Module]) -> None:
        """Shard a module's parameters when the outermost of its classes' constructors has ended."""
        if "__init__" not in vars(kind):
            return
        construct, running, watching = vars(kind)["__init__"], self._running, self._constructors

        @functools.wraps(construct)
        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if kind not in watching:  # the context has ended
                construct(module, *args, **kwargs)
                return
            running[id(module)] = running.get(id(module), 0) + 1
            try:
                with self._uses.running(() if _Interruption.active else (*args, *kwargs.values())):
                    construct(module, *args, **kwargs)
            finally:
                running[id(module)] -= 1
            if not running[id(module)]:
                del running[id(module)]
                if not _Interruption.active:
                    self._partition(module)

        self._constructors[kind] = watched, construct
        kind.__init__ = watched  # type: ignore[method-assign, assignment]

    def _partition(self, module: nn.Module) -> None:
        for name, parameter in module.__dict__.get("_parameters", {}).items():
            if parameter is not None and parameter.is_floating_point() and not parameter.is_meta:
                mark(parameter)
                partition(f"{type(module).__name__}.{name}", parameter, self._ranks, self._use)

    def _use(self, parameter: Partition) -> AbstractContextManager[bool]:
        """Make a parameter whole for the constructor that uses it, unless the context is interrupted."""
        return nullcontext(False) if _Interruption.active else self._uses.use(parameter)


def _subclasses(kind: type) -> Iterator[type]:
    """All classes below this one, each once."""
    seen: set[type] = set()
    ahead: list[type] = kind.__subclasses__()
    while ahead:
        each = ahead.pop()
        if each not in seen:
            seen.add(each)
            ahead += each.__subclasses__()
            yield each


def _apply_gathered(module: nn.Module, fn: Callable[[nn.Module], Any]) -> nn.Module:
    """``Module.apply`` over sharded parameters."""
    for child in module.children():
        child.apply(fn)
    with gathered([each for each in module._parameters.values() if each is not None], 0):
        fn(module)
    return module


class OnDevice:
    """Construct a model on a device: ``with OnDevice(dtype=torch.bfloat16, device="meta")``."""

    def __init__(self, dtype: torch.dtype, device: str | torch.device = "meta", enabled: bool = True) -> None:
        self._dtype, self._device, self._enabled = dtype, torch.device(device), enabled

    def __enter__(self) -> None:
        if self._enabled:
            self._before = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
            self._device.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._device.__exit__(kind, error, trace)
            torch.set_default_dtype(self._before)
