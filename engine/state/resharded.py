"""Sharded parameters that are not whole: each use of their values is an error that names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from zerobench.engine.layout import Slot

#: Attributes and functions that ask nothing of the values; those that set one end in "=".
# fmt: off
_METADATA = frozenset([
    "__dir__", "__len__", "_backward_hooks", "_backward_hooks=", "_grad", "_post_accumulate_grad_hooks",
    "_post_accumulate_grad_hooks=", "_version", "device", "dim", "dtype", "element_size", "empty_like", "full_like",
    "get_device", "grad", "grad=", "grad_fn", "is_complex", "is_conj", "is_cpu", "is_cuda", "is_floating_point",
    "is_inference", "is_leaf", "is_meta", "is_mkldnn", "is_mps", "is_mtia", "is_neg", "is_nested", "is_quantized",
    "is_signed", "is_sparse", "is_sparse_csr", "is_xpu", "itemsize", "layout", "names", "nbytes", "ndim",
    "ndimension", "nelement", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros",
    "numel", "ones_like", "output_nr", "rand_like", "randn_like", "register_hook",
    "register_post_accumulate_grad_hook", "requires_grad", "requires_grad=", "requires_grad_", "retain_grad",
    "retains_grad", "shape", "size", "zeros_like",
])
# fmt: on
_STRIDES = frozenset(["is_contiguous", "storage_offset", "stride"])


class Binding:
    """One sharded parameter: its data is a view of the whole unit, or there is nothing to read and it says so.

    :meth:`bind` and :meth:`unbind` alternate. An unbound parameter is of a class of its own (see Resharded). Its data
    is then one NaN, seen as many times as the parameter has elements: the C++ parts of torch, which do not ask the
    class, find memory to read, never a plausible number, and refuse to write to it.

    Args:
        slot: the parameter.
        full: the whole unit.
        storage: returns the whole unit's memory, present or not.
    """

    def __init__(self, slot: Slot, full: Tensor, storage: Callable[[], torch.UntypedStorage]) -> None:
        self.slot, self.name, self.storage = slot, slot.name, storage
        self.view = slot.view(full)
        #: Answers for the parameter's strides.
        self.like = torch.empty_strided(self.view.size(), self.view.stride(), dtype=full.dtype, device="meta")
        self._parameter: Any = slot.parameter
        self._bound: type[Tensor] = type(slot.parameter)
        self._unbound = _refusing(self._bound, self)
        self._alias = _refusing(Tensor, self)
        poison = torch.full((1,), math.nan, dtype=full.dtype, device=full.device).untyped_storage()
        self._poison: Any = full.new_empty(0).set_(poison, 0, self.view.size(), (0,) * self.view.dim())
        self._poison.__class__ = self._alias

    def bind(self) -> None:
        """The whole unit has its values: the parameter is a view of it."""
        self._parameter.__class__ = self._bound
        self._parameter.data = self.view

    def unbind(self) -> None:
        """The parameter refuses to be used from now on."""
        self._parameter.data = self._poison
        self._parameter.__class__ = self._unbound

    def alias(self) -> Tensor:
        """A tensor that stands for the unbound parameter's ``data``, and refuses likewise."""
        with torch._C.DisableTorchFunctionSubclass():
            alias: Any = self._poison.detach()
        alias.__class__ = self._alias
        return alias  # type: ignore[no-any-return]

    @property
    def exported(self) -> bool:
        """Whether somebody besides Python holds the parameter itself: a frozen one can be given away by DLPack."""
        return self._parameter._use_count() > 1 and not self._parameter.requires_grad


class Resharded:
    """Mixed into the class of a sharded parameter while it is unbound.

    Shape, dtype, device, gradient and hooks can still be asked for. ``data`` and ``detach()`` give a tensor that
    refuses likewise. Any other use raises a RuntimeError that names the parameter.
    """

    __slots__ = ()
    binding: ClassVar[Binding]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = _name(func)
        if name in _STRIDES:
            return func(cls.binding.like, *args[1:], **(kwargs or {}))
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name == "untyped_storage":
            return cls.binding.storage()
        if name in ("data", "detach"):
            return cls.binding.alias()
        names = sorted({repr(each.binding.name) for each in types if issubclass(each, Resharded)})
        raise RuntimeError(
            f"parameter {', '.join(names)} is sharded and not whole here, so it has no values to read or write; use it "
            "in the model's forward or inside GatheredParameters, or read it by safe_get_full_fp32_param"
        )

    def __repr__(self) -> str:
        like = type(self).binding.like
        return f"<parameter {type(self).binding.name!r}: {like.dtype} {tuple(like.shape)}, sharded and not whole here>"

    def __format__(self, spec: str) -> str:
        return repr(self)


def _refusing(base: type[Tensor], binding: Binding) -> Any:
    """A class for one parameter, so that the types of a call's arguments say whose they are."""
    metaclass: Any = type(base)
    return metaclass(f"Resharded{base.__name__}", (Resharded, base), {"binding": binding})


def _name(func: Any) -> str:
    """The function's name, or its attribute's, with "=" if it sets it."""
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        return str(func.__self__.__name__)
    return f"{func.__self__.__name__}=" if name == "__set__" else name
