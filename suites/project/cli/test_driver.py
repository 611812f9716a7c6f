"""Right engines that change the order in which backward adds: by threads, and by the strides of parameters."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.bench.replay import compare_again
from zerobench.driver import start
from zerobench.judge.command import ReplayCommand
from zerobench.model_specs import Odd
from zerobench.oracles.canonical_trainer import Trainer, arithmetic
from zerobench.ranks import Pool
from zerobench.scenario import Optimizer, Scenario
from zerobench.subject import Policies
from zerobench.subjects.torch_ddp import TorchDdp


class _SetsThreads(TorchDdp):
    """Sets torch's number of threads, as Accelerate does."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        torch.set_num_threads(torch.get_num_threads() + 1)


def _threads(group: dist.ProcessGroup) -> tuple[int, int]:
    before = torch.get_num_threads()
    start(_SetsThreads, Scenario(world=1, stage=0), group).close()
    return before, torch.get_num_threads()


def _leaves_more(group: dist.ProcessGroup) -> int:
    """The number of threads, before this task leaves more."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    return before


def test_every_task_has_the_threads_of_its_pool(pool: Pool) -> None:
    """The state that one task leaves is hidden from the next."""
    assert pool.run(_leaves_more, world=1) == pool.run(_leaves_more, world=1)


def test_threads_stay(pool: Pool) -> None:
    """The number of threads decides the order of sums in backward, so an engine cannot set it."""
    [(before, after)] = pool.run(_threads, world=1)
    assert before == after


class Contiguous(TorchDdp):
    """Makes every parameter contiguous, as engines with flat buffers do, and says so."""

    policies = Policies(strides="contiguous")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        for p in model.parameters():
            p.data = p.data.contiguous()
        super().__init__(model, scenario, group)


_TRANSPOSED = Scenario(
    model=Odd(hidden=(1,), activation="relu", norm=False, transposed=True),
    world=1,
    stage=0,
    steps=1,
    optimizer=Optimizer(name="sgd"),
)


@pytest.mark.parametrize("subject", [TorchDdp, Contiguous])
def test_the_oracle_has_the_declared_strides(subject: type[TorchDdp]) -> None:
    """A transposed parameter stays so, or is contiguous if the engine declares it."""
    trainer = Trainer(_TRANSPOSED, arithmetic(_TRANSPOSED), policies=subject.policies)
    assert all(p.is_contiguous() for p in trainer.leaves.working.values()) == (subject is Contiguous)


def test_an_engine_with_contiguous_parameters_is_right(pool: Pool) -> None:
    """The bound of a sum allows no other order of adding within a leaf, so the oracle adds as the engine does."""
    assert compare_again(ReplayCommand(_TRANSPOSED, f"{__name__}:Contiguous", bound=True), pool).right
