"""The packages that a machine without a package index lacks, if it has torch: to be downloaded elsewhere."""

from __future__ import annotations

from importlib import metadata

from zerobench.errors import UsageError

#: Those that torch brings along; a machine with torch has them.
_GIVEN = "torch"
#: The extras that the suites, the benchmarks and the report need.
_EXTRAS = ("report", "suites")


def needed() -> list[str]:
    """``name==version`` of each, as it is installed here, for the Python and the system of this process.

    Raises:
        UsageError: zerobench, or a package that it needs, is not installed.
    """
    found = _closure("zerobench", _EXTRAS) - _closure(_GIVEN, ()) - {"zerobench"}
    return [f"{name}=={metadata.version(name)}" for name in sorted(found)]


def _closure(root: str, extras: tuple[str, ...]) -> set[str]:
    """The names of a distribution and of all that it requires."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: set[str] = set()
    ahead = [(root, extras)]
    while ahead:
        name, chosen = ahead.pop()
        if name in found and not chosen:
            continue
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            raise UsageError(f"{name} is not installed, so its version is not known; pip install it here") from None
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *chosen)):
                required = canonicalize_name(requirement.name)
                if required not in found:
                    ahead.append((required, tuple(requirement.extras)))
    return found
