"""Sharded parameters that are not whole: each use of their values raises an error with their names."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.layout import Slot

#: Attributes and functions that do not use the values; if a function sets an attribute, its name ends in "=".
# fmt: off
_METADATA = frozenset([
    "__dir__", "__len__", "_backward_hooks", "_backward_hooks=", "_grad", "_has_compatible_shallow_copy_type",
    "_post_accumulate_grad_hooks", "_post_accumulate_grad_hooks=", "_version", "dense_dim", "device", "dim", "dtype",
    "element_size", "empty_like", "full_like", "get_device", "grad", "grad=", "grad_fn", "is_complex", "is_conj",
    "is_cpu", "is_cuda", "is_distributed", "is_floating_point", "is_inference", "is_ipu", "is_leaf", "is_maia",
    "is_meta", "is_mkldnn", "is_mps", "is_mtia", "is_neg", "is_nested", "is_pinned", "is_quantized", "is_same_size",
    "is_shared", "is_signed", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu", "itemsize", "layout",
    "name", "names", "nbytes", "ndim", "ndimension", "nelement", "new_empty", "new_empty_strided", "new_full",
    "new_ones", "new_tensor", "new_zeros", "numel", "ones_like", "output_nr", "rand_like", "randn_like",
    "register_hook", "register_post_accumulate_grad_hook", "requires_grad", "requires_grad=", "requires_grad_",
    "result_type", "retain_grad", "retains_grad", "shape", "size", "sparse_dim", "storage_type", "volatile",
    "zeros_like",
])
# fmt: on
_STRIDES = frozenset(["dim_order", "is_contiguous", "storage_offset", "stride"])
#: Conversions, by the dtype that each gives.
_CASTS = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}


class Binding:
    """One sharded parameter: either its data is a view of the whole unit, or every use of it raises.

    :meth:`bind` and :meth:`unbind` alternate. An unbound parameter has its own class (see Resharded). Its data is then
    one NaN, expanded to the parameter's shape. So if C++ code of torch bypasses the class, it reads valid memory but
    never a plausible number, and refuses to write to it.

    Args:
        slot: the parameter.
        full: the whole unit.
        storage: returns the whole unit's storage, allocated or not.
    """

    def __init__(self, slot: Slot, full: Tensor, storage: Callable[[], torch.UntypedStorage]) -> None:
        self.slot, self.name, self.storage = slot, slot.name, storage
        #: Whether the parameter is a view of the whole unit.
        self.bound = True
        #: Makes the parameter of a copied module; None if there is no copy of an unbound parameter.
        self.copied: Callable[[], Tensor] | None = None
        #: Gives the unbound parameter another dtype; None if its dtype is fixed.
        self.recast: Callable[[torch.dtype], None] | None = None
        #: Makes the parameter whole within a context; False if no forward and no backward runs, which may use it.
        self.used: Callable[[], AbstractContextManager[bool]] | None = None
        self.view = slot.view(full)
        #: A meta tensor with the parameter's strides.
        self.like = torch.empty_strided(self.view.size(), self.view.stride(), dtype=full.dtype, device="meta")
        self._parameter: Any = slot.parameter
        self._version: int = slot.parameter._version
        self._bound: type[Tensor] = type(slot.parameter)
        self._unbound = _refusing(self._bound, self)
        self._alias = _refusing(Tensor, self)
        poison = torch.full((1,), math.nan, dtype=full.dtype, device=full.device).untyped_storage()
        self._poison: Any = full.new_empty(0).set_(poison, 0, self.view.size(), (0,) * self.view.dim())
        self._poison.__class__ = self._alias

    def refuses(self, kind: type) -> bool:
        """Whether this is the class of the unbound parameter; that of its aliases is another."""
        return kind is self._unbound

    def bind(self) -> None:
        """Make the parameter a view of the whole unit, which has its values."""
        self._parameter.__class__ = self._bound
        self._parameter.data = self.view
        self.bound, self._version = True, self.parameter_version

    def unbind(self) -> None:
        """Make the parameter refuse to be used."""
        if self.bound:
            self.bound = False
            self._parameter.data = self._poison
            self._parameter.__class__ = self._unbound

    @property
    def written(self) -> bool:
        """Whether an operation of autograd's has written to the bound parameter; ``data`` has a counter of its own."""
        return self.parameter_version != self._version

    @property
    def parameter_version(self) -> int:
        """The number of autograd's writes to the parameter; new data leave it."""
        return int(self._parameter._version)

    def forget(self) -> None:
        """Make the parameter an ordinary one of its shape, without memory of its own."""
        self.bind()
        self._parameter.data = self.view.new_empty(1).as_strided(self.view.size(), (0,) * self.view.dim())

    def alias(self, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in place of the unbound parameter's ``data``, which also refuses to be used.

        Args:
            dtype: of the tensor, if it is another than the parameter's; see :attr:`recast`.
        """
        with torch._C.DisableTorchFunctionSubclass():
            alias: Any = self._poison.detach()
            if dtype is not None:
                alias = alias.new_full((1,), math.nan, dtype=dtype).as_strided(alias.size(), alias.stride())
        alias.__class__ = self._alias
        return alias  # type: ignore[no-any-return]

    @property
    def exported(self) -> bool:
        """Whether code outside Python references the parameter itself: DLPack can export a frozen one."""
        return self._parameter._use_count() > 1 and not self._parameter.requires_grad


class Resharded:
    """Mixed into the class of a sharded parameter while it is unbound.

    Shape, dtype, device, gradient and hooks remain available. ``data`` and ``detach()`` return a tensor that also
    refuses to be used. A conversion to its own dtype and device returns the parameter, so that ``Module.to`` does
    nothing. One to another dtype returns such a tensor, too, if the dtype is not fixed; as the new ``data`` of the
    parameter it changes the dtype. Within a forward or a backward, any other use makes the parameter whole for the
    call: code may have kept it in a list or a closure. Anywhere else it raises a RuntimeError that names the parameter.
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
        if _asks_metadata(name, args, kwargs or {}):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name == "untyped_storage":
            return cls.binding.storage()
        if _changes_nothing(name, args, kwargs or {}):
            return args[0]
        if name in ("__eq__", "__ne__") and args[-1] is None:
            return NotImplemented  # so that Python compares identities, as for any tensor
        with _whole(types) as used:
            if used:
                return func(*args, **(kwargs or {}))
        if name in ("data", "detach"):
            return cls.binding.alias()
        if cls.binding.recast is not None:
            dtype = _recast(name, args, kwargs or {})
            if dtype is not None:
                return cls.binding.recast(dtype) if name == "data=" else cls.binding.alias(dtype)
        raise _no_values(each.binding.name for each in types if issubclass(each, Resharded))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = type(self).binding.copied
        if copied is None or not isinstance(self, type(self).binding.slot.parameter.__class__):
            raise _no_values([type(self).binding.name])
        return memo.setdefault(id(self), copied())

    def __repr__(self) -> str:
        like = type(self).binding.like
        return f"<parameter {type(self).binding.name!r}: {like.dtype} {tuple(like.shape)}, sharded and not whole here>"

    def __format__(self, spec: str) -> str:
        return repr(self)


@contextmanager
def _whole(types: Sequence[type]) -> Iterator[bool]:
    """Make the unbound parameters of a call whole, if a forward or a backward runs; whether all of them are."""
    sharded = [each for each in types if issubclass(each, Resharded)]
    with ExitStack() as stack:
        yield all(
            each.binding.refuses(each) and each.binding.used is not None and stack.enter_context(each.binding.used())
            for each in sharded
        )


def _no_values(names: Iterable[str]) -> RuntimeError:
    return RuntimeError(
        f"parameter {', '.join(sorted(set(map(repr, names))))} is sharded and not whole here, so it has no values to "
        "read or write; use it in the model's forward or inside GatheredParameters, or read it by "
        "safe_get_full_fp32_param"
    )


def _refusing(base: type[Tensor], binding: Binding) -> Any:
    """A class for one parameter, so that the types of a call's arguments identify the parameters."""
    metaclass: Any = type(base)
    return metaclass(f"Resharded{base.__name__}", (Resharded, base), {"binding": binding})


def _name(func: Any) -> str:
    """The name of the function or its attribute, with "=" if it sets the attribute."""
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        return str(func.__self__.__name__)
    return f"{func.__self__.__name__}=" if name == "__set__" else name


def _asks_metadata(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call does not use the values; ``type`` without a dtype asks for the name of the parameter's own."""
    if name == "type":
        return len(args) == 1 and not kwargs
    return name in _METADATA and not _asked_by_a_collective(name)


def _asked_by_a_collective(name: str) -> bool:
    """Whether a collective of torch 2.11 is about to take the memory; those of later releases ask for the class."""
    if name != "is_complex":
        return False
    caller = sys._getframe(3)  # beyond _asks_metadata and __torch_function__
    return bool(caller.f_globals["__name__"] == dist.distributed_c10d.__name__)


def _changes_nothing(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call converts a tensor to the dtype and device that it has, pads it by nothing, or sets its data to
    itself or to its alias."""
    if not args:  # as torch.nn.init passes its tensor, by keyword alone
        return False
    tensor, *others = args
    if name == "data=":
        return others[0] is tensor or (_is_alias(others[0], tensor) and _dtype(others[0]) == _dtype(tensor))
    if name == "pad":
        return isinstance(tensor, Resharded) and not any(others[0] if others else kwargs["pad"])
    dtype = _converted(name, args, kwargs)
    return dtype is not None and dtype == _dtype(tensor)


def _recast(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The floating-point dtype to which the call converts a tensor, or the data that it sets; None if it is neither."""
    if not args:
        return None
    if name == "data=":
        return _dtype(args[1]) if _is_alias(args[1], args[0]) else None
    dtype = _converted(name, args, kwargs)
    return dtype if dtype is not None and dtype.is_floating_point else None


def _converted(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The dtype to which the call converts a tensor on its own device; None if it is another call."""
    tensor, *others = args
    device, dtype = None, _CASTS.get(name)
    if name == "to":
        if kwargs.get("copy") or isinstance(next(iter(others), None), Tensor):
            return None
        device, dtype, _, _ = torch._C._nn._parse_to(*others, **kwargs)
    elif name in ("cpu", "cuda"):
        device = torch.device(name, *others)
    elif name == "type":
        wanted = kwargs.get("dtype", next(iter(others), None))
        if not isinstance(wanted, torch.dtype):
            return None
        dtype = wanted
    elif dtype is None:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return (dtype or tensor.dtype) if _same_device(device or tensor.device, tensor.device) else None


def _is_alias(data: Any, tensor: Any) -> bool:
    """Whether the data are an alias of the parameter's."""
    return getattr(type(data), "binding", None) is type(tensor).binding


def _dtype(tensor: Any) -> torch.dtype:
    with torch._C.DisableTorchFunctionSubclass():
        found: torch.dtype = tensor.dtype
    return found


def _same_device(wanted: torch.device, own: torch.device) -> bool:
    """Whether a device, with or without its index, is this one; there is one CPU, whatever its index is."""
    return wanted.type == own.type and (own.type == "cpu" or wanted.index in (None, own.index))
