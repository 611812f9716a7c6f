"""torch DDP with a square root that is rounded right, for bit-for-bit comparison with the contract."""

from __future__ import annotations

from zerobench.oracles.optimizer import ExactUpdate
from zerobench.subject import Outcome
from zerobench.subjects.torch_ddp import TorchDdp


class IeeeDdp(TorchDdp):
    """DDP and torch.optim, unchanged but for the square root (zerobench.oracles.optimizer.ExactUpdate)."""

    def step(self) -> Outcome:
        with ExactUpdate():
            return super().step()
