"""Digests of the bits that come of a case."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from zerobench.recording import Trajectory
from zerobench.subject import State
from zerobench.tensors import unwrapped


def digest(trajectories: Sequence[Trajectory]) -> str:
    """SHA-256 of what all ranks recorded: every loss, norm, skip and loss scale, and the last step's parameters.

    Names, dtypes and shapes count. Equal bits have equal digests; it is the same in every process of one platform.
    """
    found = hashlib.sha256()
    for each in trajectories:
        for step in each.steps:
            found.update(repr((step.norm and step.norm.hex(), step.skipped, step.loss_scale)).encode())
            for loss in step.losses:
                found.update(_bytes(loss))
        _add(found, each.steps[-1].parameters)
    return found.hexdigest()


def bits(state: State) -> str:
    """SHA-256 of one rank's full values, by which ranks see whether they have the same ones; as :func:`digest`."""
    found = hashlib.sha256()
    _add(found, state)
    return found.hexdigest()


def held(states: Mapping[str, Sequence[Tensor]]) -> str:
    """SHA-256 of the storages that one rank holds, padding included: who owns what, and not only how much of it.

    The categories and the order count. A freed parameter's storage has no bytes.
    """
    found = hashlib.sha256()
    for category, tensors in sorted(states.items()):
        for tensor in unwrapped(tensors):
            storage = tensor.untyped_storage()
            found.update(repr((category, storage.nbytes())).encode())
            found.update(_bytes(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu()))
    return found.hexdigest()


def _add(found: hashlib._Hash, state: State) -> None:
    for name, tensor in sorted(state.items()):
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(_bytes(tensor))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
