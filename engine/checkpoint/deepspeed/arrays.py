"""NumPy's values in DeepSpeed's files, as client states have them, such as the state of NumPy's generator.

NumPy's own functions are not called with what a file says: an array of objects over bytes would be pointers. Stand-ins
take the same calls, and :func:`with_arrays` makes arrays of numbers and strings of them.
"""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

_NUMBERS_AND_STRINGS = "biufcSU"


class _Type:
    """``numpy.dtype``."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        self.code = code
        self.order: Any = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def values(self, raw: bytes | str) -> Any:
        """The values of these bytes, 1-dimensional."""
        import numpy as np

        dtype = np.dtype(str(self.code))
        if dtype.kind not in _NUMBERS_AND_STRINGS:
            raise TypeError(f"values of NumPy's type {self.code!r}")
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        return np.frombuffer(data, dtype.newbyteorder(self.order)).copy()


class _Array:
    """An array whose shape, type and bytes follow."""

    def __init__(self, kind: Any, shape: Any, code: Any) -> None:
        self.shape, self.fortran, self.values = shape, False, None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, of, self.fortran, raw = state
        self.values = of.values(raw)

    def made(self) -> Any:
        """The array."""
        assert self.values is not None
        return self.values.reshape(self.shape, order="F" if self.fortran else "C")


class _Kind:
    """``numpy.ndarray``, the first argument of the function that makes an array."""


def _number(of: _Type, raw: bytes | str) -> Any:
    return of.values(raw)[0]


_HOMES = ("numpy._core.multiarray", "numpy.core.multiarray")  # of NumPy 2, and of NumPy 1
#: The stand-ins, each with the name that a file has.
STAND_INS: list[tuple[Any, str]] = [(_Type, "numpy.dtype"), (_Kind, "numpy.ndarray")]
for _home in _HOMES:
    STAND_INS += [(_Array, f"{_home}._reconstruct"), (_number, f"{_home}.scalar")]


def with_arrays(value: Any) -> Any:
    """The value with arrays in the place of their stand-ins."""
    return _Making().made(value)


class _Making:
    """Goes through each container once, also one that holds itself."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def made(self, value: Any) -> Any:
        """The value; containers are the same objects, but for tuples."""
        if isinstance(value, _Array):
            return value.made()
        if type(value) is tuple:
            return tuple(map(self.made, value))
        if id(value) in self.seen:
            return value
        self.seen.add(id(value))
        if isinstance(value, list):
            value[:] = map(self.made, value)
        names = vars(value) if isinstance(value, Namespace | SimpleNamespace) else value
        if isinstance(names, dict):
            names.update({key: self.made(each) for key, each in names.items()})
        return value
