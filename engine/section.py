"""What every section of the configuration is: checked by pydantic, closed and frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the configuration: an unknown key is an error, and a value never changes."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)
