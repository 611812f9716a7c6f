"""The models that a Scenario can name: their sizes and, of the odd one, its peculiarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "reentrant", "non_reentrant"]
Routes = Literal["ranks", "steps", "micro_steps"]


@dataclass(frozen=True)
class Gpt:
    """A decoder-only transformer on bytes of text; the sizes are those of the field's usual names."""

    kind: Literal["gpt"] = "gpt"
    vocab: int = 256
    context: int = 128
    width: int = 192
    layers: int = 6
    heads: int = 6
    tied: bool = False
    dropout: float = 0.0
    recompute: Recompute = "none"

    @property
    def shares(self) -> bool:
        """Whether a parameter is at two places."""
        return self.tied


@dataclass(frozen=True)
class Vit:
    """A vision transformer on square images of three channels; sizes in pixels, the default is ViT-B/16."""

    kind: Literal["vit"] = "vit"
    image: int = 224
    patch: int = 16
    classes: int = 1000
    width: int = 768
    layers: int = 12
    heads: int = 12
    dropout: float = 0.0
    recompute: Recompute = "none"

    @property
    def shares(self) -> bool:
        """Whether a parameter is at two places: never."""
        return False


@dataclass(frozen=True)
class Odd:
    """A small model that has, on demand, every peculiarity that has broken a sharding engine before.

    Each flag adds one: see :mod:`zerobench.workload.models.odd`, which builds them.
    """

    kind: Literal["odd"] = "odd"
    width: int = 5
    hidden: tuple[int, ...] = (7, 3)  # one block for each entry: width -> entry -> width, with a residual
    activation: Literal["relu", "tanh", "gelu"] = "gelu"
    loss: Literal["mse", "dot"] = "mse"
    norm: bool = True  # a LayerNorm in each block
    tied: bool = False  # the head reuses the weight of the stem
    functional: bool = False  # the root's forward uses a submodule's weight without calling the submodule
    reused: bool = False  # the first block is called twice in a forward
    tied_blocks: bool = False  # a further block has the matrices of the first one
    part_alone: bool = False  # the root's forward also calls the first block's linears, apart from the block
    listed_twice: bool = False  # the list of blocks has the first one a second time
    nested: bool = False  # a further block holds a list of blocks, and a parameter beside it
    no_grad: bool = False  # the root's forward also calls the first block with gradients disabled
    stopped: bool = False  # leaves with ``route`` false (see Batch) detach the output of the first call of a block
    structured: bool = False  # blocks return a tuple, a dict or a dataclass, with a tensor that nothing uses
    in_place: bool = False  # the root's forward edits the output of each block in place
    frozen: bool = False  # one linear of a block, and one whole block (from three on two), do not require gradients
    unused: bool = False  # a trainable linear that no forward calls
    routed: bool = False  # a block that only leaves with ``route`` true use
    routes: Routes = "ranks"  # the leaves with ``route``: of some ranks, or of some steps or micro-steps on every rank
    scalar: bool = False  # a 0-dimensional parameter outside any block
    tiny: bool = False  # parameters of one and two elements
    empty: bool = False  # a parameter with no element
    transposed: bool = False  # a dense but not contiguous parameter
    high: bool = False  # parameters of three and of four dimensions
    buffers: bool = False  # buffers that training updates: a running mean, and the number of its samples
    persistent: bool = True  # they are in the state dict
    buffers_by: Literal["edit", "binding"] = "edit"  # training edits them, or binds new tensors to their names
    order: Literal["listed", "turned"] = "listed"  # of the calls of blocks, in leaves with ``route`` false
    rare_parts: Literal["none", "all"] = "none"  # if ``transposed``: see zerobench.workload.models.rare_parts
    dropout: float = 0.0
    recompute: Recompute = "none"

    @property
    def narrowest(self) -> int:
        """The least number of rows of a parameter of the stem, the blocks and the head."""
        return min(self.width, *self.hidden) if self.hidden else self.width

    @property
    def rows(self) -> set[int]:
        """The numbers of rows of its trained parameters."""
        beside = {1, 2} if self.tiny else set()
        further = {4} if self.routed or self.nested else set()
        return {self.width, *self.hidden} | beside | further | ({2, 3} if self.high else set())

    @property
    def has_rare_parts(self) -> bool:
        """Whether it has them: one has the strides that engines refuse in a transposed parameter."""
        return self.transposed and self.rare_parts == "all"

    @property
    def turned(self) -> bool:
        """Whether some leaves call the blocks from the last to the first."""
        return self.order == "turned"

    @property
    def by_route(self) -> bool:
        """Whether the route of a leaf decides which parameters receive a gradient."""
        return self.routed or self.stopped

    @property
    def returns_dicts(self) -> bool:
        """Whether a block returns a dict, which is the form of the second one."""
        return self.structured and len(self.hidden) + self.tied_blocks + self.nested + self.routed > 1

    @property
    def leaves_some_out(self) -> bool:
        """Whether a trainable parameter may receive no gradient from a leaf."""
        return self.unused or self.by_route

    @property
    def shares(self) -> bool:
        """Whether a parameter is at two places."""
        return self.tied or self.tied_blocks or self.listed_twice

    @property
    def calls_twice(self) -> bool:
        """Whether a forward calls the first block twice."""
        return self.reused or self.listed_twice

    @property
    def repeats(self) -> bool:
        """Whether a forward uses matrices of the first block more than once."""
        return self.calls_twice or self.tied_blocks or self.part_alone
