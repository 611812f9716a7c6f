"""torch.nn.functional's lookups with ``max_norm`` in a forward: as those of nn.Embedding, at every stage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from zerobench.compat.patches.lookups import watch_lookups
from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

pytestmark = pytest.mark.usefixtures("reference")

_WORLD, _ROWS = 4, 12


class _Looks(nn.Module):
    """The sum of a lookup and of a product with the same weight."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        made: Any = nn.EmbeddingBag if "bag" in kind else nn.Embedding
        self.kind, self.words = kind, made(_ROWS, 4, max_norm=0.5 if kind.startswith("module") else None)

    def forward(self, rows: Tensor) -> Tensor:
        found = self.words(rows) if self.kind.startswith("module") else self._functional(rows)
        product: Tensor = found.reshape(len(rows), -1)[:, :4] @ self.words.weight.T
        return product

    def _functional(self, rows: Tensor) -> Tensor:
        if self.kind == "bag":
            return functional.embedding_bag(rows, self.words.weight, None, 0.5, mode="mean")
        if self.kind == "by place":
            return functional.embedding(rows, self.words.weight, None, 0.5)
        return functional.embedding(input=rows, weight=self.words.weight, max_norm=0.5)


def _masters(group: dist.ProcessGroup, stage: int, kind: str, threshold: int, bf16: bool) -> Tensor:
    """The masters after four steps, in which each rank looks up rows of its own."""
    torch.manual_seed(0)
    net = _Looks(kind)
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8, bf16={"enabled": bf16})
    keys["zero_optimization"]["stage3_param_persistence_threshold"] = threshold
    engine, *_ = loops.deepspeed().initialize(model=net, config=keys)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        engine.backward(engine(torch.randint(_ROWS, (2, 3), generator=draw)).float().square().mean())
        engine.step()
    after = loops.masters(net)
    engine.destroy()
    return after


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("kind", "module"), [("by name", "module"), ("by place", "module"), ("bag", "module bag")])
def test_as_the_module(pool: Pool, kind: str, module: str, bf16: bool) -> None:
    """The scaled rows hold for the lookup alone, also if a parameter stays whole at stage 3."""
    for threshold in (0, 10**6):
        [[expected, *_], *_] = pool.run(loops.at_every_stage, _masters, module, threshold, bf16, world=_WORLD)
        for stages in pool.run(loops.at_every_stage, _masters, kind, threshold, bf16, world=_WORLD):
            assert all(torch.equal(after, expected) for after in stages)


def _after_two_forwards(group: dist.ProcessGroup, stage: int) -> Tensor:
    """The masters after a step of two forwards for one backward, without ``max_norm``."""
    torch.manual_seed(0)
    net = _Looks("module")
    net.words.max_norm = None
    engine, *_ = loops.deepspeed().initialize(
        model=net, config=loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    )
    rows = torch.arange(6).view(2, 3)
    engine.backward((engine(rows) + engine(rows.flip(1))).square().mean())
    engine.step()
    after = loops.masters(net)
    engine.destroy()
    return after


def test_without_max_norm_the_weight_is_left_alone(pool: Pool) -> None:
    """The product of the first forward saves the weight, which the second lookup must not write."""
    [[expected, *others], *_] = pool.run(loops.at_every_stage, _after_two_forwards, world=_WORLD)
    assert all(torch.equal(after, expected) for after in others)


def test_without_an_engine(pool: Pool) -> None:
    """torch's own lookup scales the rows in place, as before."""
    pool.run(_masters, 0, "by name", 0, False, world=_WORLD)
    weight = nn.Parameter(torch.ones(3, 4))
    functional.embedding(torch.tensor([1]), weight, max_norm=1.0)
    assert weight.detach().norm(dim=1).tolist() == pytest.approx([2.0, 1.0, 2.0], abs=1e-4)


_SCRIPT = """
from torch.nn.functional import embedding
import deepspeed, torch

net = torch.nn.Embedding(6, 4)
net.forward = lambda rows: embedding(rows, net.weight, max_norm=0.5)
before = net.weight.detach().clone()
config = {"train_batch_size": 3, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = deepspeed.initialize(model=net, config=config)
found = engine(torch.arange(3))
print("scaled", bool((found.norm(dim=1) < 0.51).all()), "kept", torch.equal(net.weight.detach(), before))
"""


def test_imported_before_the_engine(tmp_path: Path) -> None:
    """A script may import the function by its name before deepspeed."""
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    env = {**outside(), **one, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "zerobench.compat", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert "scaled True kept True" in done.stdout, done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch says that TorchScript is no longer developed
def test_scripted() -> None:
    """torch.jit.script takes the functions as it takes torch's."""
    watch_lookups(functional)
    scripted = torch.jit.script(nn.Sequential(nn.Embedding(3, 4, max_norm=1.0), nn.Linear(4, 2)))
    assert scripted(torch.tensor([1])).shape == (1, 2)
