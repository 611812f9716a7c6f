"""A batch norm in 16 bits: torch's kernels want its weights and its running statistics in one dtype."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")


class _Model(nn.Module):
    """A convolution with norms of each kind, and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.instance = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.register_buffer("offset", torch.tensor(1 / 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.instance(self.norm(self.convolution(x)).relu()).square().mean()  # type: ignore[no-any-return]


def _trained(group: dist.ProcessGroup, stage: int, precision: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The losses of three steps, and the buffers after them."""
    zero = {"stage": stage, "chunk_size": 32, "stage3_param_persistence_threshold": 0}
    adam = {"type": "Adam", "params": {"lr": 0.125}}
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": adam, "zero_optimization": zero}
    engine, *_ = zerobench.initialize(_Model(), config | {precision: {"enabled": True}}, process_group=group)
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    losses = []
    for step in range(3):
        losses.append(engine(torch.arange(50.0).view(2, 1, 5, 5).sub(step).div(16).to(dtype)))
        engine.backward(losses[-1])
        engine.step()
    buffers = {name: each.clone() for name, each in engine.module.named_buffers()}
    engine.destroy()
    return [loss.detach() for loss in losses], buffers


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_norms_train_in_16_bits(pool: Pool, precision: str) -> None:
    """Losses and running statistics are the same at every stage; the statistics have the model's dtype, as after
    ``model.half()``, and other buffers keep theirs."""
    first, *others = [pool.run(_trained, stage, precision, world=2) for stage in range(4)]
    losses, buffers = first[0]
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    assert {name: each.dtype for name, each in buffers.items() if each.is_floating_point()} == {
        **dict.fromkeys(("norm.running_mean", "norm.running_var"), dtype),
        **dict.fromkeys(("instance.running_mean", "instance.running_var"), dtype),
        "offset": torch.float32,
    }
    plain = _Model().to(dtype)
    assert losses[0].equal(plain(torch.arange(50.0).view(2, 1, 5, 5).div(16).to(dtype)).detach())
    for other in others:
        assert all(one.equal(same) for one, same in zip(losses, other[0][0], strict=True))
        assert all(each.equal(other[0][1][name]) for name, each in buffers.items())
