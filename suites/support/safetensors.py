"""Files of weights, as the format's own package reads them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 - it is no dict
