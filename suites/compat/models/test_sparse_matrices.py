"""Sparse matrices in a forward, such as the adjacency of a graph: their products are differentiated at every stage."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")
_EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


class _Graph(nn.Module):
    """Convolutions by constant matrices in two layouts, and by one whose values are a parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)
        self.weights = nn.Parameter(torch.randn(4))
        self.fixed = torch.eye(4).roll(1, 0)

    def forward(self, x: Tensor) -> Tensor:
        nodes = torch.tanh(self.first(x.repeat(2, 1)[:4]))
        nodes = torch.sparse.mm(self.fixed.to_sparse(), nodes)
        nodes = torch.sparse.mm(self.fixed.to_sparse_csr(), nodes)
        learned = torch.sparse_coo_tensor(_EDGES, self.weights, (4, 4))
        answer: Tensor = self.last(torch.sparse.mm(learned, nodes))[: len(x)]
        return answer


def _trained(group: dist.ProcessGroup, stage: int) -> Tensor:
    net = _Graph()
    engine, *_ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    after = loops.trained(engine, net, 4)
    engine.destroy()
    return after


def test_every_stage(pool: Pool) -> None:
    """At stage 3 the memory of a saved sparse matrix was asked for, which torch does not give."""
    ranks = pool.run(loops.at_every_stage, _trained, world=4)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0]) for after in stages)
