"""torch DDP whose updates are rounded as the contract says, for bit-for-bit comparison with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from zerobench.oracles.optimizer import ExactUpdate
from zerobench.subject import Outcome
from zerobench.subjects.torch_ddp import TorchDdp


class IeeeDdp(TorchDdp):
    """DDP and torch.optim, unchanged but for where and how an update rounds.

    torch updates on the host, also if the model is on a GPU: its CUDA code rounds in other places. For the square root
    see zerobench.oracles.optimizer.ExactUpdate.
    """

    def step(self) -> Outcome:
        with _on_host(self.optimizer), ExactUpdate():
            return super().step()


@contextmanager
def _on_host(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the parameters, their gradients and their states are copies on the host."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    devices = [p.device for p in parameters]
    for p in parameters:
        _move(p, optimizer, torch.device("cpu"))
    yield
    for p, device in zip(parameters, devices, strict=True):
        _move(p, optimizer, device)


def _move(p: torch.Tensor, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    gradient, states = p.grad, optimizer.state.get(p, {})
    p.data = p.data.to(device, copy=True)
    p.grad = None if gradient is None else gradient.to(device)
    states.update({key: value.to(device) for key, value in states.items() if value.shape == p.shape})
