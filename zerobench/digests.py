"""Digests of the bits of a case."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from zerobench.recording import Trajectory
from zerobench.subject import State
from zerobench.tensors import bytes_of, unwrapped

#: Bytes; longer values are hashed in blocks of this length, by all cores.
BLOCK = 64 << 20


def digest(trajectories: Sequence[Trajectory]) -> str:
    """SHA-256 of the recordings of all ranks: every loss, norm, skip and loss scale, and the last step's parameters.

    Names, dtypes and shapes count. Equal bits have equal digests; it is the same in every process of one platform.
    """
    found = hashlib.sha256()
    for each in trajectories:
        for step in each.steps:
            found.update(repr((step.norm and step.norm.hex(), step.skipped, step.loss_scale)).encode())
            for loss in step.losses:
                _update(found, loss)
        _add(found, each.steps[-1].parameters)
    return found.hexdigest()


def bits(state: State) -> str:
    """SHA-256 of one rank's full values, so that ranks can check if theirs are equal; as :func:`digest`."""
    found = hashlib.sha256()
    _add(found, state)
    return found.hexdigest()


def held(states: Mapping[str, Sequence[Tensor]], *, signed_zeros: bool = True) -> str:
    """SHA-256 of the storages that one rank holds, padding included: the elements that it owns, not only their number.

    The categories and the order count. A freed parameter's storage has no bytes. Without ``signed_zeros`` both zeros
    are the same: an exact sum of zero has either sign, as the kernel begins it.
    """
    found = hashlib.sha256()
    for category, tensors in sorted(states.items()):
        for tensor in unwrapped(tensors):
            storage = tensor.untyped_storage()
            found.update(repr((category, storage.nbytes())).encode())
            whole = torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(storage)
            values = whole.to("cpu", copy=True)  # if numpy has seen a storage, its engine cannot free it any more
            _update(found, values if signed_zeros else values + 0)
    return found.hexdigest()


def _add(found: hashlib._Hash, state: State) -> None:
    for name, tensor in sorted(state.items()):
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        _update(found, tensor)


def _update(found: hashlib._Hash, tensor: Tensor) -> None:
    """Add the tensor's bytes, or the digests of their blocks if there are several."""
    values = bytes_of(tensor).numpy().data
    if len(values) <= BLOCK:
        found.update(values)
        return
    blocks = (values[start : start + BLOCK] for start in range(0, len(values), BLOCK))
    with ThreadPoolExecutor() as threads:
        for block in threads.map(_digest, blocks):
            found.update(block)


def _digest(block: memoryview) -> bytes:
    return hashlib.sha256(block).digest()
