"""The environment variables that DeepSpeed's launcher sets beside torchrun's."""

from __future__ import annotations

import os

#: By DeepSpeed's name: torchrun's.
_NAMES = {"LOCAL_SIZE": "LOCAL_WORLD_SIZE", "CROSS_RANK": "GROUP_RANK", "CROSS_SIZE": "GROUP_WORLD_SIZE"}


def add_variables() -> None:
    """Set those that the launcher has not set, from torchrun's."""
    for name, source in _NAMES.items():
        if source in os.environ:
            os.environ.setdefault(name, os.environ[source])
