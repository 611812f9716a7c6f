"""A small model that has, on demand, every peculiarity that has broken a sharding engine before."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zerobench.errors import UsageError
from zerobench.model_specs import Odd
from zerobench.workload.models.odd_blocks import Block, Nested, hidden_of, structure
from zerobench.workload.models.rare_parts import RareParts


class OddModel(nn.Module):
    """``forward(x, y, route)`` with x and y [B, width] is the leaf's mean loss, in fp32 or wider.

    With relu, no norm and the dot loss it divides only by B: exact on dyadic data if B is a power of two.

    Raises:
        UsageError: if a size is below one.
    """

    running_mean: Tensor
    samples: Tensor

    def __init__(self, spec: Odd) -> None:
        super().__init__()
        if min(spec.width, *spec.hidden, 1) < 1:
            raise UsageError(f"an odd model's sizes must be 1 or more; got width {spec.width}, hidden {spec.hidden}")
        self.spec = spec
        width = spec.width
        self.stem = nn.Linear(width, width)  # trainable: reentrant recomputation needs an input with a gradient
        self.blocks = nn.ModuleList(Block(spec, inner) for inner in spec.hidden)
        self.head = nn.Linear(width, width)
        self._add_blocks()
        if spec.tied:
            self.head.weight = self.stem.weight
        if spec.functional:
            self.side = nn.Linear(width, width, bias=False)
        if spec.unused:
            self.unused = nn.Linear(width, width)
        if spec.has_rare_parts:
            self.parts = RareParts(width)
        self._add_parameters()

    def _add_blocks(self) -> None:
        """The further blocks are in the list like any other, so that an engine cuts units at them.

        If there are three blocks or more, the last of them is frozen as well, so that two neighbours train nothing.
        """
        if self.spec.frozen:
            if len(self.blocks):
                self.blocks[0].get_submodule("up").requires_grad_(False)
            if len(self.blocks) > 2:
                self.blocks[-1].requires_grad_(False)
            self.blocks.append(Block(self.spec, 4).requires_grad_(False))
        if self.spec.tied_blocks and self.spec.hidden:
            self.blocks.append(self._tied_block())
        if self.spec.nested:
            self.blocks.append(Nested(self.spec))
        if self.spec.listed_twice and self.spec.hidden:
            self.blocks.append(self.blocks[0])
        if self.spec.routed:
            self.blocks.append(Block(self.spec, 4))
        if self.spec.structured:
            structure(self.blocks)

    def _tied_block(self) -> Block:
        tied = Block(self.spec, self.spec.hidden[0])
        for name in ("up", "down"):
            linear = self.blocks[0].get_submodule(name)
            tied.get_submodule(name).register_parameter("weight", linear.get_parameter("weight"))
        return tied

    def _add_parameters(self) -> None:
        width = self.spec.width
        if self.spec.scalar:
            self.scalar = nn.Parameter(torch.tensor(1.25))
        if self.spec.tiny:
            self.one = nn.Parameter(torch.tensor([0.75]))
            self.two = nn.Parameter(torch.tensor([0.5, -0.25]))
        if self.spec.empty:
            self.empty = nn.Parameter(torch.zeros(0))
        if self.spec.transposed:  # [width, width + 1] with strides (1, width)
            self.transposed = nn.Parameter(nn.init.normal_(torch.empty(width + 1, width), std=0.5 / width**0.5).t())
        if self.spec.high:
            self.three = nn.Parameter(nn.init.normal_(torch.empty(3, 2, width), std=0.25))
            self.four = nn.Parameter(nn.init.normal_(torch.empty(2, 1, 3, width), std=0.25))
        if self.spec.buffers:
            self.register_buffer("running_mean", torch.zeros(width), persistent=self.spec.persistent)
            count = torch.tensor(257)  # more than bfloat16 can count
            self.register_buffer("samples", count, persistent=self.spec.persistent)

    def forward(self, x: Tensor, y: Tensor, route: bool, scale: float = 1.0, undefined: bool = False) -> Tensor:
        hidden = self._prologue(x, undefined)
        for position, block in enumerate(self._calls(route)):
            output = self._call(block, hidden)
            stops = self.spec.stopped and not route and position == 0
            hidden = hidden + output.detach() if stops else output
            if self.spec.in_place:
                hidden.neg_()
        out = self.head(hidden)
        if self.spec.scalar:
            out = out * self.scalar
        if self.spec.empty:
            out = out + self.empty.sum()  # zero, but with an empty gradient
        return self._loss(out, y) * scale

    def _prologue(self, x: Tensor, undefined: bool) -> Tensor:
        hidden: Tensor = self.stem(x)
        if undefined and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]
        if self.spec.functional:
            hidden = hidden + F.linear(x, self.side.weight)
        if self.spec.transposed:  # its last column acts as a bias
            hidden = hidden + F.linear(F.pad(hidden, (0, 1), value=1.0), self.transposed)
        if self.spec.tiny:
            hidden = hidden * self.one + self.two.sum()
        if self.spec.high:
            hidden = hidden + hidden * self.three[1:].sum((0, 1)) + self.four.sum((0, 1, 2))
        if self.spec.has_rare_parts:
            hidden = hidden + self.parts(hidden)
        if self.spec.buffers:
            hidden = self._center(hidden)
        if self.spec.part_alone and self.spec.hidden:
            first = self.blocks[0]
            hidden = hidden + first.get_submodule("down")(first.get_submodule("up")(hidden))
        if self.spec.no_grad and self.spec.hidden:
            with torch.no_grad():
                target = hidden_of(self.blocks[0](hidden))
            hidden = hidden + target
        return hidden

    def _center(self, hidden: Tensor) -> Tensor:
        if self.training:
            mean = hidden.detach().to(self.running_mean.dtype).mean(0)
            if self.spec.buffers_by == "binding":
                self.samples, self.running_mean = self.samples.clone(), self.running_mean.clone()
            self.samples += len(hidden)
            self.running_mean += (mean - self.running_mean) * (128 / self.samples.to(torch.float32))
        return hidden - self.running_mean.to(hidden.dtype)

    def _calls(self, route: bool) -> Iterator[nn.Module]:
        """The blocks in the order of a forward's calls; the routed one is the last in their list."""
        called = list(self.blocks)[: len(self.blocks) - (self.spec.routed and not route)]
        if self.spec.turned and not route:
            called.reverse()
        for index, block in enumerate(called):
            yield block
            if self.spec.reused and index == 0:
                yield block

    def _call(self, block: nn.Module, hidden: Tensor) -> Tensor:
        if self.spec.recompute == "none" or not torch.is_grad_enabled():
            return hidden_of(block(hidden))
        reentrant = self.spec.recompute == "reentrant"
        return checkpoint(lambda x: hidden_of(block(x)), hidden, use_reentrant=reentrant)  # type: ignore[no-any-return]

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        wide = torch.promote_types(out.dtype, torch.float32)
        out, y = out.to(wide), y.to(wide)
        return F.mse_loss(out, y) if self.spec.loss == "mse" else (out * y).sum(1).mean()
