"""ZeroParamStatus: whether a parameter is whole, by DeepSpeed's names."""

from __future__ import annotations

from enum import Enum


class ZeroParamStatus(Enum):
    """The engine's parameters have no attribute ``ds_status``; callers that ask for it find the parameter whole."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3
