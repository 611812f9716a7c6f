"""A section of a configuration, to read."""

from __future__ import annotations

from typing import Any


class Section:
    """The keys of one section as attributes: the given values, and the defaults.

    A section within it, such as ``offload_optimizer``, is None if it is not given, as in DeepSpeed.
    """

    def __init__(self, given: dict[str, Any], defaults: dict[str, Any]) -> None:
        self._given, self._defaults = given, defaults

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for key in (name, f"stage3_{name}"):
            default = self._defaults.get(key)
            if key in self._given:
                value = self._given[key]
                return Section(value, default or {}) if isinstance(value, dict) else value
            if key in self._defaults:
                return None if isinstance(default, dict) else default
        raise AttributeError(f"the section has no key {name!r}; it has {', '.join({**self._defaults, **self._given})}")

    def __repr__(self) -> str:
        keys = (key.removeprefix("stage3_") for key in self._defaults)
        return f"{type(self).__name__}({', '.join(f'{key}={getattr(self, key)!r}' for key in keys)})"
