"""``deepspeed.checkpoint``: tensors made ready to be saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """``item`` with each tensor copied to ``device``, so that a view is saved without the memory around it."""
    if isinstance(item, Tensor):
        return item.detach().clone().to(device)
    if isinstance(item, dict):
        return type(item)((key, clone_tensors_for_torch_save(value, device)) for key, value in item.items())
    if isinstance(item, list | tuple):
        return type(item)(clone_tensors_for_torch_save(value, device) for value in item)
    return item
