"""Parts of a model that torch.compile was given train at every stage; at stage 3 they run as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")


class _Parts(nn.Module):
    """A compiled block, one compiled in place, and a compiled method, which is recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(3)]
        blocks[1].compile(backend="eager")
        self.one, self.two, self.three = torch.compile(blocks[0], backend="eager"), blocks[1], blocks[2]
        self.head = nn.Linear(5, 3)

    @torch.compile(backend="eager")
    def last(self, x: Tensor) -> Any:
        return self.three(x)

    def forward(self, x: Tensor) -> Any:
        x = torch.utils.checkpoint.checkpoint(self.last, self.two(self.one(x)), use_reentrant=False)
        return self.head(x)


def _trained(group: dist.ProcessGroup, stage: int) -> tuple[Tensor, list[str]]:
    net = _Parts()
    engine, *_ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    after = loops.trained(engine, net, 2)
    names = [name for name, _ in net.named_parameters()]
    if stage == 3:
        compiled: Any = torch.compile(engine, backend="eager")
        with pytest.raises(RuntimeError, match=r"torch\.compile was given an engine at stage 3"):
            compiled(torch.ones(1, 5))
    engine.destroy()
    return after, names


def test_every_stage(pool: Pool) -> None:
    """At stage 3 torch's compiler met the engine's collectives and failed with an internal error."""
    ranks = pool.run(loops.at_every_stage, _trained, world=4)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0][0]) and names == ranks[0][0][1] for after, names in stages)
