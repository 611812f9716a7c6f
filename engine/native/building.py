"""Building a shared library at first use, into a per-user cache, once for all processes."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zerobench.engine.errors import KernelError

_TORCH_INSTEAD = "or set ZEROBENCH_KERNELS=torch to use the slower torch definitions"
#: nvcc adds these flags by itself, so the digest of a recipe would miss them.
_ADDED = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


@dataclass(frozen=True)
class Recipe:
    """How to build one library: compiler, flags and sources, without ``-o`` and a path."""

    name: str  # of the file
    title: str  # for people
    compiler: tuple[str, ...]  # a program and its first arguments: g++ if CXX="ccache g++"
    flags: tuple[str, ...]
    sources: tuple[Path, ...]
    included: tuple[Path, ...]  # headers, which are sources of the library too

    @cached_property
    def version(self) -> str:
        """The compiler's version text, and its path, since two compilers may have the same text."""
        program, *first = self.compiler
        asked = [*self.compiler, "--version"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True, env=_environment())
        except (OSError, subprocess.SubprocessError) as error:
            raise KernelError(
                f"{shlex.join(asked)} failed: {error}; install a C++ compiler, {_TORCH_INSTEAD}"
            ) from None
        return f"{shlex.join([os.path.realpath(program), *first])}\n{done.stdout}"

    @property
    def library(self) -> Path:
        """The path of the library in the cache."""
        return cache() / f"{self.name}-{self.digest()[:32]}.so"

    def digest(self) -> str:
        """SHA-256 over sources, compiler, flags and machine: the library depends on nothing else."""
        parts = [self.version, platform.machine(), *self.flags]
        parts += [f"{path.name}\n{path.read_text(encoding='utf-8')}" for path in (*self.sources, *self.included)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def sources() -> Path:
    """The folder of the native sources, ``zerobench/kernels``.

    Raises:
        KernelError: the folder is missing.
    """
    folder = Path(__file__).parents[2] / "kernels"
    if not (folder / "dtype.h").is_file():
        raise KernelError(f"the native sources are not in {str(folder)!r}; install zerobench again")
    return folder


def find(names: list[str], what: str) -> str:
    """The path of the first of these programs that exists.

    Raises:
        KernelError: none exists; the message names a package to install.
    """
    for name in names:
        if path := shutil.which(name):
            return path
    raise KernelError(f"no {what} was found (looked for {', '.join(names)}); install one, {_TORCH_INSTEAD}")


def words(variable: str) -> list[str]:
    """The words of an environment variable, split as a shell does; none if it is not set.

    Raises:
        KernelError: a closing quotation mark is missing.
    """
    given = os.environ.get(variable, "")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise KernelError(f"{variable} is {given!r}: {error}; set it to words, quoted as in a shell") from None


def cache() -> Path:
    """The folder of built libraries: ``ZEROBENCH_CACHE``, else zerobench in ``XDG_CACHE_HOME`` or in ``~/.cache``."""
    if given := os.environ.get("ZEROBENCH_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "zerobench"
    except RuntimeError:
        raise KernelError("there is no home directory to keep built kernels in; set ZEROBENCH_CACHE") from None


def build(recipe: Recipe) -> Path:
    """The library of a recipe, from the cache or built now.

    A library in the cache is used only if its size and SHA-256 are those recorded after its build. One process builds
    it under another name, renames it and reports this on standard error; all other processes wait silently.

    Raises:
        KernelError: no compiler, a failed build (with its output), or a cache that cannot be written.
    """
    library = recipe.library
    if not _is_as_built(library):
        with _alone(library):
            if not _is_as_built(library):
                _compile(recipe, library)
    return library


def load(recipe: Recipe) -> ctypes.CDLL:
    """Load the library of a recipe, and build it before if necessary.

    Raises:
        KernelError: as build; or the system cannot load it (such as from a file system mounted noexec).
    """
    library = build(recipe)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise KernelError(f"{recipe.title} cannot be loaded: {error}; set ZEROBENCH_CACHE to another folder") from None


def _note(library: Path) -> Path:
    return library.with_suffix(".json")


def _measure(library: Path) -> dict[str, int | str]:
    data = library.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _is_as_built(library: Path) -> bool:
    try:
        noted = json.loads(_note(library).read_text(encoding="utf-8"))
        return bool(_measure(library) == noted)
    except (OSError, ValueError):
        return False


@contextmanager
def _alone(library: Path) -> Iterator[None]:
    """A lock for one process at a time; the system releases it if the process ends in any way."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with library.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        where = library.parent
        raise KernelError(
            f"built kernels cannot be kept in {where}: {error}; set ZEROBENCH_CACHE to a folder that can be written"
        ) from None


def _environment() -> dict[str, str]:
    """The compiler's environment: this process's, without variables that add flags."""
    return {name: value for name, value in os.environ.items() if name not in _ADDED}


def _compile(recipe: Recipe, library: Path) -> None:
    unfinished = library.with_suffix(".unfinished")
    command = [*recipe.compiler, *recipe.flags, *map(str, recipe.sources), "-o", str(unfinished)]
    what = f"{recipe.title} with {shlex.join(recipe.compiler)}"
    print(f"zerobench: building {what} ...", end="", file=sys.stderr, flush=True)
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    print(f" {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    if done.returncode:
        raise KernelError(f"building {recipe.title} failed:\n{shlex.join(command)}\n{done.stdout}{done.stderr}")
    made = _measure(unfinished)
    unfinished.replace(library)
    unfinished.write_text(json.dumps(made), encoding="utf-8")
    unfinished.replace(_note(library))
