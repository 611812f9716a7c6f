"""``deepspeed.runtime.config_utils``: the base of a script's own configuration classes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict


def get_scalar_param(param_dict: dict[str, Any], param_name: str, param_default_value: Any) -> Any:
    """The value of a key, or the default."""
    return param_dict.get(param_name, param_default_value)


get_list_param = get_dict_param = get_scalar_param


def dict_raise_error_on_duplicate_keys(ordered_pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of json that refuses a key that is given twice.

    Raises:
        ValueError: a key is given twice.
    """
    twice = [key for key, number in Counter(key for key, _ in ordered_pairs).items() if number > 1]
    if twice:
        raise ValueError(f"Duplicate keys in DeepSpeed config: {twice}")
    return dict(ordered_pairs)


class DeepSpeedConfigModel(BaseModel):
    """A section with checked types and no unknown keys; a value that is ``auto`` counts as not given."""

    model_config = ConfigDict(
        validate_default=True,
        validate_assignment=True,
        use_enum_values=True,
        populate_by_name=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(**{key: value for key, value in data.items() if strict or value != "auto"})


def get_config_default(config: type[BaseModel], field_name: str) -> Any:
    """The default of a field of a section."""
    return config.model_fields[field_name].get_default()


class pp_int(int):  # DeepSpeed's name
    """An integer that is printed with commas, or as ``custom_print_str``."""

    def __new__(cls, val: Any, custom_print_str: str | None = None) -> pp_int:
        made = super().__new__(cls, val)
        made.custom_print_str = custom_print_str
        return made

    custom_print_str: str | None

    def __repr__(self) -> str:
        return self.custom_print_str or f"{self.real:,}"


class ScientificNotationEncoder(json.JSONEncoder):
    """JSON with numbers above 1000 in scientific notation."""

    def iterencode(self, o: Any, _one_shot: bool = False, level: int = 0) -> Iterator[str]:
        """The text, as one part."""
        yield self._text(o, level)

    def encode(self, o: Any) -> str:
        """The text."""
        return self._text(o, 0)

    def _text(self, o: Any, level: int) -> str:
        indent = 4 if self.indent is None else int(self.indent)
        if isinstance(o, int | float) and not isinstance(o, bool):
            return f"{o:e}" if o > 1e3 else f"{o}"
        if isinstance(o, Mapping):
            prefix = "\n" + " " * indent * (level + 1)
            lines = [f'{prefix}"{key}": {self._text(value, level + 1)}' for key, value in o.items()]
            return "{" + ", ".join(lines) + "\n" + " " * indent * level + "}"
        if isinstance(o, Sequence) and not isinstance(o, str):
            return f"[{', '.join(self._text(each, 0) for each in o)}]"
        return json.dumps(o, default=self.default)


class DeepSpeedConfigObject:
    """An object whose attributes are printed as JSON."""

    def repr(self) -> dict[str, Any]:
        """The attributes."""
        return self.__dict__

    def __repr__(self) -> str:
        return json.dumps(self.__dict__, sort_keys=True, indent=4, cls=ScientificNotationEncoder)
