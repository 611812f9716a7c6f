"""The base class of the configuration's sections: checked by pydantic, closed and frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the configuration: an unknown key is an error, and values are immutable."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)
