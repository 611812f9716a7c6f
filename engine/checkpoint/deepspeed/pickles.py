"""DeepSpeed's files: torch.save's, a zip of a pickle and the tensors' bytes.

Loading one runs no code. torch's weights-only unpickler makes containers, tensors and the classes stated here, among
them those of a client state's NumPy values, namespaces, paths and dates, and refuses every other name. The stand-ins
for DeepSpeed's classes have attributes and no methods, so DeepSpeed need not be installed, neither to load nor to save.
"""

from __future__ import annotations

import datetime as dt
import pickle
import re
import stat
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import IO, Any, ClassVar

import torch

from zerobench.engine.checkpoint.deepspeed.arrays import STAND_INS, with_arrays
from zerobench.engine.checkpoint.directory import failed
from zerobench.engine.errors import CheckpointError

#: The pickler in Python, because the one in C cannot write a name that it cannot import.
_PythonPickler: Any = pickle._Pickler


class _StandIn:
    """The attributes of an object of DeepSpeed's."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class StaticScaler(_StandIn):
    """``LossScaler``."""


class DynamicScaler(_StandIn):
    """``DynamicLossScaler``."""


class Fragment(_StandIn):
    """``fragment_address``: the position of a parameter's part in a partition."""


_SCALERS = "deepspeed.runtime.fp16.loss_scaler"
#: By stand-in: the module and the name of DeepSpeed's class.
_CLASSES: dict[type, tuple[str, str]] = {
    StaticScaler: (_SCALERS, "LossScaler"),
    DynamicScaler: (_SCALERS, "DynamicLossScaler"),
    Fragment: ("deepspeed.utils.tensor_fragment", "fragment_address"),
}
#: The stage is an enumeration in the files, and its number here.
_SAFE: list[Any] = [(int, "deepspeed.runtime.zero.config.ZeroStageEnum")]
_SAFE += [(stand_in, ".".join(name)) for stand_in, name in _CLASSES.items()]
_SAFE += [Namespace, SimpleNamespace, PosixPath, frozenset, dt.datetime, dt.timedelta]
_SAFE += STAND_INS


def check(path: Path) -> None:
    """Check that a file is a plain file, a zip, and that each of its parts has its checksum.

    Raises:
        CheckpointError: it is not, or it is damaged.
    """
    with failed(f"find {path.name!r}, a file of the checkpoint {str(path.parent)!r}"):
        found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path.name!r} in {str(path.parent)!r} is not a plain file")
    with failed(f"read {path.name!r} in {str(path.parent)!r}"):
        try:
            with zipfile.ZipFile(path) as archive:
                wrong = archive.testzip()
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
            wrong = str(error)
    if wrong is not None:
        raise CheckpointError(_damaged(path, wrong))


def read(path: Path) -> dict[str, Any]:
    """The content of a file that holds a dict; see :func:`read_any`.

    Raises:
        CheckpointError: the file names a class or a function that is not stated here, or it is not a dict.
    """
    content = read_any(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name!r} in {str(path.parent)!r} holds a {type(content).__name__}, not a dict")
    return content


def read_any(path: Path) -> Any:
    """The content of a file that :func:`check` has accepted; tensors are maps of the file, read when they are used.

    Raises:
        CheckpointError: the file names a class or a function that is not stated here.
    """
    try:
        with torch.serialization.safe_globals(_SAFE):
            return with_arrays(torch.load(path, map_location="cpu", mmap=True, weights_only=True))
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refused(path, str(error))) from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise any error
        raise CheckpointError(_damaged(path, f"{type(error).__name__}: {error}")) from None


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Turn an error of a layout that is not DeepSpeed's into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(
            f"{str(folder)!r} is no checkpoint of DeepSpeed's, or of a version that is not known: "
            f"{type(error).__name__}: {error}"
        ) from error


def _refused(path: Path, told: str) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", told)
    if found is None:
        return _damaged(path, told.splitlines()[-1])
    return (
        f"{path.name!r} in {str(path.parent)!r} names {found[1]}, which no checkpoint of DeepSpeed's needs, and which "
        "could run code; nothing was run or loaded: if a client state holds such an object, save it as plain data"
    )


def _damaged(path: Path, how: str) -> str:
    return (
        f"{path.name!r} in {str(path.parent)!r} is damaged or was not written by torch.save ({how}); load another tag, "
        "or an undamaged copy"
    )


def write(file: IO[bytes], content: dict[str, Any]) -> None:
    """Write a file as DeepSpeed does, with the names of DeepSpeed's classes in place of the stand-ins."""
    torch.save(content, file, pickle_module=SimpleNamespace(__name__="pickle", Pickler=_Pickler))


class _Pickler(_PythonPickler):  # type: ignore[misc]
    """A pickler that writes a stand-in's name as DeepSpeed's, without importing DeepSpeed."""

    dispatch: ClassVar[dict[type, Any]] = dict(_PythonPickler.dispatch)

    def save_class(self, obj: type) -> None:
        if obj not in _CLASSES:
            self.save_type(obj)
            return
        module, name = _CLASSES[obj]
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.memoize(obj)

    dispatch[type] = save_class
