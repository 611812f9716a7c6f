"""deepspeed.checkpointing: the bits of a plain forward, the memory of its options, its random numbers, its errors."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.compat.activation_checkpointing import checkpointing
from zerobench.engine.errors import ConfigError
from zerobench.meters.offload import OffloadMeter
from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_CONTIGUOUS = {"partition_activations": True, "contiguous_memory_optimization": True, "number_checkpoints": 3}
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"cpu_checkpointing": True},
    {"partition_activations": True, "synchronize_checkpoint_boundary": True},
    _CONTIGUOUS,
    {**_CONTIGUOUS, "cpu_checkpointing": True, "profile": True},
]


class _Block(nn.Module):
    """Draws from the device's generator and from the tracker's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(0.3)

    def forward(self, x: Tensor, mask: Tensor, *, scale: float) -> tuple[Tensor]:
        with checkpointing.get_cuda_rng_tracker().fork():
            noise = torch.rand_like(x)
        return (x + self.drop(torch.tanh(self.inner(x * mask))) * scale + noise,)


class _Model(nn.Module):
    def __init__(self, recomputed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(3))
        self.recomputed = recomputed
        self.kept = 0

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(8, dtype=torch.bool)
        for block in self.blocks:
            (x,) = (
                (checkpointing.checkpoint(block, x, mask, scale=0.5),) if self.recomputed else block(x, mask, scale=0.5)
            )
        self.kept = sum(checkpointing.saved_bytes().values())
        return x.square().mean()


def _trained(group: dist.ProcessGroup, stage: int, options: dict[str, Any] | None) -> tuple[Tensor, int]:
    """The masters after two steps, and the bytes that the checkpoints of a forward keep."""
    ds = loops.deepspeed()
    torch.manual_seed(3)
    net = _Model(recomputed=options is not None)
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    keys |= {} if options is None else {"activation_checkpointing": options}
    ds.checkpointing.configure(None, deepspeed_config=keys)
    assert ds.checkpointing.is_configured()
    engine, *_ = ds.initialize(model=net, config=keys)
    ds.checkpointing.model_parallel_cuda_manual_seed(5)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(2):
        engine.backward(engine(torch.randn(2, 8, generator=draw)))
        engine.step()
    with torch.no_grad():
        engine(torch.ones(2, 8))  # without a backward, nothing is kept
    gc.collect()
    assert checkpointing.saved_bytes() == {}
    after = loops.masters(net)
    drawn = torch.rand(1)
    kept = net.kept
    engine.train()
    loss = engine(torch.ones(2, 8))
    kept = net.kept
    del loss
    engine.destroy()
    return torch.cat([after, drawn]), kept


def _all(group: dist.ProcessGroup, stage: int) -> list[tuple[Tensor, int]]:
    return [_trained(group, stage, options) for options in (None, *_OPTIONS)]


def test_bits(pool: Pool) -> None:
    """With every option, at every stage, the model trains as without checkpoints; each input is kept once."""
    for stages in pool.run(loops.at_every_stage, _all, world=4):
        (plain, _), *_ = stages[0]
        for ways in stages:
            assert all(torch.equal(after, plain) for after, _ in ways)
            assert [kept for _, kept in ways] == [0, *[3 * 2 * 8 * 4] * len(_OPTIONS)]


@pytest.mark.parametrize(
    ("options", "place", "held"),
    [
        ({}, "device", 3),
        ({"partition_activations": True}, "device", 3),
        ({"cpu_checkpointing": True}, "host", 3),
        ({**_CONTIGUOUS, "number_checkpoints": 5}, "device", 5),
        ({**_CONTIGUOUS, "number_checkpoints": 5, "cpu_checkpointing": True}, "host", 5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ledger(options: dict[str, Any], place: str, held: int, dtype: torch.dtype) -> None:
    """Three checkpoints keep what the closed form says, by place, and move it once to the host and once back."""
    checkpointing.configure(None, {"activation_checkpointing": options})
    size = 2 * 8 * dtype.itemsize
    x = torch.randn(2, 8, dtype=dtype, requires_grad=True)
    with OffloadMeter() as meter:
        value: Tensor = x
        for index in range(3):
            value = checkpointing.checkpoint(lambda given, mask: torch.tanh(given) * mask, value, torch.tensor(True))
            # A buffer is there as a whole from its first input on.
            assert checkpointing.saved_bytes() == {place: size * (held if held > 3 else index + 1)}
        value.sum().backward()  # type: ignore[no-untyped-call]
        del value
    gc.collect()
    assert checkpointing.saved_bytes() == {}
    assert checkpointing.most_saved_bytes() == {place: size * held}
    assert dict(meter.bytes) == ({"to_host": 3 * size, "to_device": 3 * size} if place == "host" else {})
    checkpointing.configure(None)
    assert checkpointing.most_saved_bytes() == {}


def test_options_that_do_not_fit() -> None:
    """Each is one clear error."""
    for section, words in (
        ({"contiguous_memory_optimization": True}, "needs partition_activations and number_checkpoints"),
        ({**_CONTIGUOUS, "number_checkpoints": None}, "needs partition_activations and number_checkpoints"),
    ):
        with pytest.raises(ConfigError, match=words):
            checkpointing.configure(None, {"train_batch_size": 1, "activation_checkpointing": section})


def test_strings_and_mistakes_in_options() -> None:
    """Numbers and flags may be strings; a misprint is an error, as of initialize()."""
    texts = {"partition_activations": "True", "number_checkpoints": "3", "cpu_checkpointing": "false"}
    try:
        checkpointing.configure(None, {"activation_checkpointing": {**_CONTIGUOUS, **texts}})
        for _ in range(3):
            checkpointing.checkpoint(torch.exp, torch.ones(4, requires_grad=True)).sum().backward()
        assert checkpointing.most_saved_bytes() == {"device": 48}
        with pytest.raises(
            ConfigError, match=r"activation_checkpointing\.number_checkpoint: unknown key; did you mean"
        ):
            checkpointing.configure(None, {"activation_checkpointing": {"number_checkpoint": 3}})
    finally:
        checkpointing.configure(None)


@pytest.mark.parametrize(
    ("sizes", "words"), [([4] * 4, "more checkpoints than number_checkpoints"), ([4, 5], "whose inputs are alike")]
)
def test_buffers_that_do_not_fit(sizes: list[int], words: str) -> None:
    """More checkpoints than announced, and inputs of several sizes."""
    checkpointing.configure(None, {"activation_checkpointing": _CONTIGUOUS})
    try:
        *inputs, last = [torch.ones(size, requires_grad=True) for size in sizes]
        outputs = [checkpointing.checkpoint(torch.exp, each) for each in inputs]
        with pytest.raises(ConfigError, match=words):
            checkpointing.checkpoint(torch.exp, last)
        del outputs
    finally:
        checkpointing.configure(None)


@pytest.mark.parametrize("options", _OPTIONS, ids=str)
def test_an_edited_input(options: dict[str, Any]) -> None:
    """If the input is edited in place after the forward, the gradient is that of its first values, or it raises."""
    x = torch.ones(2, requires_grad=True)
    checkpointing.configure(None, {"activation_checkpointing": options})
    try:
        hidden, other = x * 1.0, x * 1.0
        value = checkpointing.checkpoint(torch.relu, hidden).sum() + checkpointing.checkpoint(torch.relu, other).sum()
        hidden.mul_(-1.0)  # a relu keeps its output alone, so that this is legal without a checkpoint
        if options.get("cpu_checkpointing") or options.get("contiguous_memory_optimization"):
            value.backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0, 2.0]
        else:
            with pytest.raises(RuntimeError, match=r"of size \(2,\), was edited in place after the forward"):
                value.backward()
    finally:
        checkpointing.configure(None)


def test_the_tracker() -> None:
    """A fork goes on where the last one ended, and leaves the device's generator alone."""
    tracker = checkpointing.get_cuda_rng_tracker()
    torch.manual_seed(1)
    expected = torch.rand(2)
    checkpointing.model_parallel_cuda_manual_seed(1)
    drawn = []
    for _ in range(2):
        with tracker.fork():
            drawn.append(torch.rand(3))
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(1 + 2718)
    assert torch.equal(torch.cat(drawn), torch.rand(6))
    with pytest.raises(ValueError, match="has no state 'other'; add it first"), tracker.fork("other"):
        pass
    with pytest.raises(ValueError, match="already; give others"):
        tracker.add("another", 1 + 2718)
