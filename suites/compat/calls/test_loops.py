"""Training loops of DeepSpeed's users: every stage and every style is one trajectory, and it is the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

import zerobench
from zerobench.compat import schedules
from zerobench.ranks import Pool, RankFault
from zerobench.suites.compat import loops
from zerobench.suites.compat.calls import saving_loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


def _native(group: dist.ProcessGroup) -> list[Tensor]:
    """The tutorial with zerobench's own calls, its data cut by torch's sampler."""
    net, dataset, states = loops.model(), loops.data(), []
    order: list[int] = list(DistributedSampler(dataset, num_replicas=_WORLD, rank=dist.get_rank(group)))
    config = {
        "train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 2, "chunk_size": 32},
    }
    schedule = lambda optimizer: schedules.WarmupLR(optimizer, 0, 1e-2, 3)  # noqa: E731
    engine, *_ = zerobench.initialize(net, config, lr_scheduler=schedule, process_group=group)
    for number in range(12):
        chosen = [dataset[index] for index in order[number % 6 * 2 : number % 6 * 2 + 2]]
        x, y = (torch.stack(column) for column in zip(*chosen, strict=True))
        engine.backward(nn.functional.mse_loss(engine(x), y))
        engine.step()
        if number % 2 == 1:
            states.append(loops.masters(net))
    engine.destroy()
    return states


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) == 6 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def expected(pool: Pool) -> list[Tensor]:
    """The trajectory of zerobench's own calls."""
    first, *others = pool.run(_native, world=_WORLD)
    assert all(_equal(first, other) for other in others)
    return first


@pytest.mark.parametrize("loop", [loops.tutorial, loops.declared], ids=["tutorial", "declared"])
def test_styles(pool: Pool, expected: list[Tensor], loop: Any) -> None:
    """Both calling styles at every stage, with DeepSpeed's order of samples and its default clipping."""
    for stages in pool.run(loops.at_every_stage, loop, world=_WORLD):
        assert all(_equal(states, expected) for states in stages)


@pytest.mark.parametrize("kind", ["torch", "cpu-adam", "fused-adam", "torch-callable", "cpu-adam-callable"])
def test_clients(pool: Pool, expected: list[Tensor], kind: str) -> None:
    """Optimizer and schedule by the client."""
    for states in pool.run(loops.clients, 3, kind, world=_WORLD):
        assert _equal(states, expected)


@pytest.mark.parametrize("kind", ["lion", "fused-lion-callable"])
def test_lions_by_the_client(pool: Pool, kind: str) -> None:
    """DeepSpeed's two classes give the bits of the configuration's Lion."""
    [expected, *_] = pool.run(loops.tutorial, 1, "Lion", world=_WORLD)
    for states in pool.run(loops.clients, 2, kind, world=_WORLD):
        assert _equal(states, expected)


def test_resume_at_another_stage(pool: Pool, expected: list[Tensor], tmp_path: Path) -> None:
    """A checkpoint of stage 1 continues at stage 2, with client state, schedule and optimizer."""
    for states in pool.run(loops.interrupted, 1, str(tmp_path), world=_WORLD):
        assert _equal(states, expected)


def test_overflow(pool: Pool) -> None:
    """One rank's overflow skips the step on all; DeepSpeed's attributes and the learning rate say so."""
    schedule = schedules.WarmupLR(torch.optim.SGD(loops.model().parameters()), 0, 1e-2, 3)
    schedule.step()
    schedule.step()
    seen = [(False, True, 0, 16.0), (True, False, 1, 8.0), (False, True, 1, 8.0), (3, schedule.get_last_lr())]
    assert pool.run(loops.at_every_stage, loops.overflowing, world=_WORLD) == [[seen] * 4] * _WORLD


def test_no_sync(pool: Pool) -> None:
    """The backwards in the block count for the step after it, at the stages that keep whole gradients."""
    first, *others = [one for rank in pool.run(_both_unsharded, world=_WORLD) for one in rank]
    assert all(torch.equal(first, other) for other in others)


def _both_unsharded(group: dist.ProcessGroup) -> list[Tensor]:
    return [loops.without_sync(group, stage) for stage in (0, 1)]


@pytest.mark.parametrize(("steps", "device"), [(1, "none"), (2, "none"), (2, "cpu")])
def test_two_backwards(pool: Pool, steps: int, device: str) -> None:
    """A second backward before step() adds to the first one, with the bits of a sum that only step() ends."""
    [first, *_] = pool.run(loops.twice, 2, steps, "none", False, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, loops.twice, steps, device, True, world=_WORLD):
        assert all(torch.equal(after, first) for after in stages)


@pytest.mark.parametrize("zeroing", ["engine", "optimizer"])
@pytest.mark.parametrize(("steps", "device"), [(1, "none"), (1, "cpu"), (2, "none"), (2, "cpu")])
def test_gradients_are_zeroed(pool: Pool, steps: int, device: str, zeroing: str) -> None:
    """A client that leaves a batch out after its backward trains the next one alone."""
    expected = pool.run(loops.zeroed, 0, steps, "none", None, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, loops.zeroed, steps, device, zeroing, world=_WORLD):
        assert all(torch.equal(after, expected[0]) for after in stages)


@pytest.mark.parametrize(
    ("steps", "orders"), [(1, ["bzb", "bb", "b"]), (2, ["b", "bzbb", "bzb", "b", "zb", "bb"]), (2, ["bb", "bzb"])]
)
def test_zero_grad_in_any_order(pool: Pool, steps: int, orders: list[str]) -> None:
    """zero_grad() drops the backwards of the whole step before it if that has had its last one, and none at any other
    time; later steps count all of theirs again."""
    [expected, *_] = pool.run(loops.ordered, 2, steps, orders, False, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, loops.ordered, steps, orders, True, world=_WORLD):
        assert all(torch.equal(after, expected) for after in stages)


def test_two_backwards_that_offload_refuses(pool: Pool) -> None:
    """Gradients that leave the device at once cannot be added to."""
    with pytest.raises(RankFault, match="offload_optimizer keeps no sum of gradients between micro-steps"):
        pool.run(loops.twice, 2, 1, "cpu", True, world=_WORLD)


def test_evaluation(pool: Pool) -> None:
    """Without an optimizer the model is evaluated as it is; between steps all stages give the same bits."""
    with torch.no_grad():
        plain = loops.model()(torch.ones(2, 5))
    ranks = pool.run(loops.at_every_stage, loops.evaluating, world=_WORLD)
    for stages in ranks:
        assert all(torch.equal(first, plain) for first, _ in stages)
        assert all(torch.equal(between, ranks[0][0][1]) for _, between in stages)


def test_export(pool: Pool, tmp_path: Path) -> None:
    """Whole weights at every stage, in a file and gathered."""
    assert pool.run(loops.at_every_stage, saving_loops.exported, str(tmp_path), world=_WORLD) == [[True] * 4] * _WORLD


def test_recovery(pool: Pool, tmp_path: Path) -> None:
    """deepspeed.utils.zero_to_fp32 gives the masters of a checkpoint of any stage."""
    assert (
        pool.run(loops.at_every_stage, saving_loops.recovered, str(tmp_path), world=_WORLD)
        == [[[True] * 6] * 4] * _WORLD
    )


def test_recovery_of_tied_names(pool: Pool, tmp_path: Path) -> None:
    """A tied parameter has all its names, as DeepSpeed writes them, so that load_state_dict() is strict; safetensors
    has it once."""
    assert pool.run(loops.at_every_stage, saving_loops.tied, str(tmp_path), world=_WORLD) == [[[True] * 3] * 4] * _WORLD


def test_orders(pool: Pool, tmp_path: Path) -> None:
    """Exports have DeepSpeed's order: a module's buffers follow its parameters, as in torch; zero_to_fp32 begins with
    buffers and frozen parameters. Each tensor has its shape."""
    [stages, *_] = pool.run(loops.at_every_stage, saving_loops.orders, str(tmp_path), world=_WORLD)
    own = saving_loops.Buffered().state_dict()
    whole = [(name, tuple(value.shape)) for name, value in own.items()]
    buffers = [(name, tuple(value.shape)) for name, value in own.items() if name in saving_loops.SAVED_BUFFERS]
    frozen = [("first.weight", (4, 5))]
    for found in stages:
        assert found["whole"] == found["file"] == whole
        assert found["fp32"] == [*buffers, *frozen, *(each for each in whole if each not in buffers + frozen)]
        assert found["module"] == [(name, ()) for name in own]
        assert found["trained"] == [(name, ()) for name in own if name != "first.weight"]


def test_a_save_within_a_step(pool: Pool, tmp_path: Path) -> None:
    """It has the states after the last step, as in DeepSpeed, and the step goes on."""
    loop = saving_loops.within_a_step
    assert pool.run(loops.at_every_stage, loop, str(tmp_path), world=_WORLD) == [[[True] * 3] * 4] * _WORLD


def test_a_load_within_a_step(pool: Pool, tmp_path: Path) -> None:
    """As in DeepSpeed, a load keeps the count of micro-steps, and each step ends at a multiple of two."""
    stages = pool.run(loops.at_every_stage, saving_loops.loaded_within_a_step, str(tmp_path), world=_WORLD)
    assert stages == [[[(1, 3, True), (2, 4, False), (2, 5, True)]] * 4] * _WORLD


def test_states_are_edited(pool: Pool) -> None:
    """Masters, optimizer states and gradients, set whole, in parts, and by one rank."""
    assert pool.run(loops.at_every_stage, loops.edited, world=_WORLD) == [[True] * 4] * _WORLD
