"""The states of a rank's random number generators: torch on the CPU and the device, Python's and numpy's."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

#: numpy's global generator, unless the user has replaced it.
_NUMPY = "MT19937"


def rng_states(device: torch.device) -> dict[str, Tensor]:
    """The state of each generator, 1-dimensional on the CPU, by name; its size does not depend on its values."""
    _, words, gauss = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([*words, math.nan if gauss is None else gauss], dtype=torch.float64),
    }
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - the global generator
    if name == _NUMPY:
        states["numpy"] = torch.tensor([*map(int, keys), position, has_gauss, cached], dtype=torch.float64)
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_rng(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set each generator that ``states`` has, of those that :func:`rng_states` names."""
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "python" in states:
        *words, gauss = states["python"].tolist()
        random.setstate((3, tuple(map(int, words)), None if math.isnan(gauss) else gauss))
    if "numpy" in states:
        *keys, position, has_gauss, cached = states["numpy"].tolist()
        state = (_NUMPY, np.array(keys, dtype=np.uint32), int(position), int(has_gauss), cached)
        np.random.set_state(state)  # noqa: NPY002 - the global generator
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
