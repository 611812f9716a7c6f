"""Scenario: one frozen value that describes a run completely.

Hypothesis draws it, the benchmark grid lists it, and a report has a row for it. If it fails, the message prints it, so
that ``zerobench replay`` can run it again. It round-trips through JSON exactly.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from zerobench.errors import UsageError, unknown
from zerobench.placement import Mesh, Placement

Dtype = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "reentrant", "non_reentrant"]
Routes = Literal["ranks", "steps", "micro_steps"]
OffloadTarget = Literal["none", "cpu", "nvme"]
PoisonedBy = Literal["inf", "nan"]
ScheduledBy = Literal["client", "engine"]
Forwards = Literal["one", "two", "dropped", "no_grad"]
Loads = Literal["all", "without_optimizer", "model"]
FrozenIn = Literal["all", "saved", "loaded"]
Readable = Literal["gradients", "parameters", "model_parameters", "optimizer_state", "evaluation"]

#: The ranges of the numbers that the harness itself depends on; the engine or the model checks the others.
_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("world", "replicate", "steps", "micro_batch", "accumulation"), (1, math.inf)),
    "stage": (0, 3),
}


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
    dropout: float = 0.0
    recompute: Recompute = "none"

    @property
    def narrowest(self) -> int:
        """The least number of rows of a parameter of the stem, the blocks and the head."""
        return min(self.width, *self.hidden) if self.hidden else self.width

    @property
    def by_route(self) -> bool:
        """Whether the route of a leaf decides which parameters receive a gradient."""
        return self.routed or self.stopped

    @property
    def leaves_some_out(self) -> bool:
        """Whether a trainable parameter may receive no gradient from a leaf."""
        return self.unused or self.by_route

    @property
    def calls_twice(self) -> bool:
        """Whether a forward calls the first block twice."""
        return self.reused or self.listed_twice

    @property
    def repeats(self) -> bool:
        """Whether a forward uses matrices of the first block more than once."""
        return self.calls_twice or self.tied_blocks or self.part_alone


@dataclass(frozen=True)
class Optimizer:
    """The optimizer's rule and hyperparameters, named as torch names them."""

    name: Literal["adam", "adamw", "sgd", "lion", "adagrad"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)  # adam, adamw, lion
    eps: float = 1e-8  # adam, adamw, adagrad
    weight_decay: float = 0.01  # decoupled in adamw and lion, else L2
    momentum: float = 0.9  # sgd
    lr_decay: float = 0.0  # adagrad
    second_group: bool = False  # of parameters of one dimension or fewer; zerobench/workload/groups.py has its values
    third_group: bool = False  # of the head, whatever the dimensions; the second one if there is no other


@dataclass(frozen=True)
class LossScale:
    """fp16 loss scaling: static when ``static`` is positive, else the dynamic state machine of DeepSpeed."""

    static: float = 0.0
    initial_power: int = 8
    window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    minimum: float = 1.0


@dataclass(frozen=True)
class Read:
    """A reading in step ``step``, ``times`` in a row, after ``at`` micro-steps, or after the update if ``at`` is -1.

    Gradients are whole only after the last micro-step, so there alone they can be read.
    """

    what: Readable = "parameters"
    step: int = 0
    at: int = -1
    times: int = 1


@dataclass(frozen=True)
class Scenario:
    """Everything about a run; sizes are in elements, ``context`` and ``micro_batch`` in samples and tokens."""

    model: Gpt | Vit | Odd = field(default_factory=Odd)
    world: int = 2
    stage: int = 0
    dtype: Dtype = "fp32"
    steps: int = 3
    micro_batch: int = 2  # samples in one leaf
    ragged: bool = False  # every second leaf has half as many, rounded down, and at least one
    accumulation: int = 1  # micro-steps per step
    forwards: Forwards = "one"  # of a micro-step, before its one backward: see zerobench.workload.forwards
    clip: float = 0.0  # 0 = off
    optimizer: Optimizer = field(default_factory=Optimizer)
    # of each group's initial learning rate, by step; the last one stays, and the second group is a step ahead
    lr_factors: tuple[float, ...] = ()
    scheduled_by: ScheduledBy = "client"  # the engine steps an lr_scheduler after each update; a client sets all itself
    weight_decay_factors: tuple[float, ...] = ()  # the same of its weight decay
    momentum_factors: tuple[float, ...] = ()  # the same of its momentum or beta1, as in torch's OneCycleLR
    loss_scale: LossScale = field(default_factory=LossScale)
    schedule: Literal["auto", "micro_step", "boundary"] = "auto"  # auto: boundary at stages 0 and 1
    communication_dtype: Dtype | None = None  # None = dtype
    accumulator_dtype: Dtype | None = None  # None = fp32
    overlap: bool = True
    chunk: int = 1024
    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    persistence: int = 0
    max_live: int = 0
    sub_group: int = 1_000_000_000
    offload_optimizer: OffloadTarget = "none"  # in force from stage 1 on: see optimizer_at
    offload_param: OffloadTarget = "none"  # in force at stage 3: see parameters_at
    offload_ratio: float = 1.0  # of the optimizer
    nvme_path: str = ""  # "": the system's directory for temporary files
    buffer_count: int = 8
    buffer_size: int = 100_000_000
    pipeline_read: bool = False
    pipeline_write: bool = False
    max_in_cpu: int = 0
    data: Literal["random", "dyadic", "text"] = "random"
    data_path: str = ""
    poison: tuple[tuple[int, int], ...] = ()  # (step, leaf): that leaf's loss is multiplied by ``poison_by``
    poison_by: PoisonedBy = "inf"
    zeroed: tuple[tuple[int, int], ...] = ()  # (step, leaf): that leaf's loss is zero, and so are its gradients
    reads: tuple[Read, ...] = ()  # in the middle of training; an engine must not depend on being watched
    edits: tuple[int, ...] = ()  # before these steps the client sets some of the trained parameters
    frozen_steps: tuple[int, ...] = ()  # in these, no parameter of the first block requires a gradient
    ranks_differ: bool = False  # the ranks build different models; the engine takes that of rank 0
    resumes: tuple[int, ...] = ()  # before these steps a new engine loads the state that the last one saved
    loads: Loads = "all"  # the part of the state that it loads (docs/reference/contract.md, Loads)
    frozen_in: FrozenIn = "all"  # of ``model.frozen``: in all engines, in the first one, or in those that have loaded
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    replicate: int = 1  # groups of ranks that each hold all shards: see mesh

    @property
    def placement(self) -> Placement:
        """The states that the stage shards."""
        return Placement.of_stage(self.stage)

    @property
    def mesh(self) -> Mesh:
        """The shape of the ranks.

        Raises:
            UsageError: if ``replicate`` does not divide ``world``.
        """
        return Mesh.of(self.world, self.replicate)

    @property
    def leaves(self) -> int:
        """Micro-batches in one step over all ranks: L = N * A."""
        return self.world * self.accumulation

    @property
    def reduction(self) -> Literal["micro_step", "boundary"]:
        """The reduction schedule in force; the two are different sums (see docs/reference/contract.md)."""
        if self.schedule == "auto":
            return "micro_step" if self.placement.gradients else "boundary"
        return self.schedule

    @property
    def schedules(self) -> dict[str, tuple[float, ...]]:
        """The factors by step of each scheduled hyperparameter, by its name in a parameter group."""
        factors = {
            "lr": self.lr_factors,
            "weight_decay": self.weight_decay_factors,
            "momentum": self.momentum_factors,
        }
        return {name: by_step for name, by_step in factors.items() if by_step}

    @property
    def engine_schedules(self) -> bool:
        """Whether the engine steps a scheduler of the learning rate."""
        return self.scheduled_by == "engine" and bool(self.lr_factors)

    def factors(self, step: int, group: int = 0) -> dict[str, float]:
        """The factor of each scheduled hyperparameter of a group in ``step``; 1 before the first step.

        Group g is g steps ahead, so that the groups' factors differ, as in a client's schedules. A scheduler of the
        engine counts the steps that were not skipped.
        """
        if step < 0:
            return dict.fromkeys(self.schedules, 1.0)
        return {name: by_step[min(step + group, len(by_step) - 1)] for name, by_step in self.schedules.items()}

    @property
    def bad_steps(self) -> set[int]:
        """The steps with a bad leaf, which are skipped."""
        return {step for step, _ in self.poison}

    @property
    def resumed(self) -> bool:
        """Whether a new engine loads a saved state in the middle of the run."""
        return bool(self.resumes)

    @property
    def loads_part(self) -> bool:
        """Whether a new engine loads a part of a saved state."""
        return self.resumed and self.loads != "all"

    def freezes(self, loaded: bool) -> bool:
        """Whether the parameters that ``model.frozen`` means are frozen, in an engine that has loaded or not."""
        return self.frozen_in == "all" or (self.frozen_in == "loaded") == loaded

    @property
    def resumed_unstepped(self) -> bool:
        """Whether it does so after skipped steps only, before the first update."""
        return any(self.bad_steps.issuperset(range(resume)) for resume in self.resumes)

    @property
    def resumed_frozen(self) -> bool:
        """Whether a new engine loads a state before the first block has trained."""
        return any(set(self.frozen_steps).issuperset(range(resume)) for resume in self.resumes)

    @property
    def raises_scale(self) -> bool:
        """Whether a dynamic loss scale may grow: more good steps than its window come in a row."""
        bad = [-1, *sorted(self.bad_steps), self.steps]
        good = max(after - before - 1 for before, after in itertools.pairwise(bad))
        return self.dtype == "fp16" and not self.loss_scale.static and good > self.loss_scale.window

    @property
    def evaluated_before_update(self) -> bool:
        """Whether an evaluation comes between a backward and the update of its step."""
        return any(read.what == "evaluation" and read.at > 0 for read in self.reads)

    @property
    def optimizer_at(self) -> OffloadTarget:
        """The place of an owner's optimizer states; "none" is the device, also if the stage does not shard them."""
        return self.offload_optimizer if self.placement.optimizer else "none"

    @property
    def parameters_at(self) -> OffloadTarget:
        """The place of an owner's parameter shards; "none" is the device, also if the stage does not shard
        them."""
        return self.offload_param if self.placement.parameters else "none"

    @property
    def elsewhere(self) -> frozenset[str]:
        """Memory that may hold states off the device: ``host``, and for nvme ``file`` too, with buffers on the host."""
        targets = {self.optimizer_at, self.parameters_at}
        if targets == {"none"}:
            return frozenset()
        return frozenset(("host", "file") if "nvme" in targets else ("host",))

    def but(self, **changes: Any) -> Scenario:
        """The same Scenario with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> str:
        """One line of JSON that :meth:`from_json` reads back; fields at their default are left out."""
        return json.dumps(_sparse(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the output of :meth:`to_json`.

        Raises:
            UsageError: if it is not JSON, or if a field or value is invalid, such as 0 steps.
        """
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"a Scenario must be a JSON object, as a failure prints it; {error}") from None
        found = typing.cast(Self, _decode(cls, raw, "scenario"))
        assert found.mesh.world == found.world  # raises if there is no such mesh
        return found


def scaled(group: Mapping[str, Any], factors: Mapping[str, float]) -> dict[str, Any]:
    """The hyperparameters of a group times their factors; in a group with betas, ``momentum`` is the first of them."""
    found = {name: group[name] * factor for name, factor in factors.items() if name in group}
    if "betas" in group and "momentum" in factors:
        beta1, beta2 = group["betas"]
        found["betas"] = (beta1 * factors["momentum"], beta2)
    return found


def _sparse(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_sparse(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    out = {}
    for item in dataclasses.fields(value):
        current = getattr(value, item.name)
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        if item.name == "kind" or current != default:
            out[item.name] = _sparse(current)
    return out


def _decode(hint: Any, raw: Any, where: str) -> Any:
    """Build the value of type ``hint`` from parsed JSON, checking every level."""
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_dataclass(hint, raw, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(hint), raw, where)
    if origin is tuple and isinstance(raw, list):
        args = typing.get_args(hint)
        kinds = [args[0]] * len(raw) if args[-1] is Ellipsis else list(args)
        if len(kinds) == len(raw):
            pairs = enumerate(zip(kinds, raw, strict=True))
            return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)
    if origin is Literal and raw in typing.get_args(hint):
        return raw
    if hint is float and isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(hint, type) and type(raw) is hint:
        return raw
    expected = " or ".join(map(repr, typing.get_args(hint))) if origin is Literal else getattr(hint, "__name__", hint)
    raise UsageError(f"{where}: expected {expected}, got {raw!r}")


def _decode_dataclass(hint: type[Any], raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: expected an object, got {raw!r}")
    hints = _hints(hint)  # type: ignore[arg-type]  # mypy: a type is hashable
    for name in raw:
        if name not in hints:
            raise unknown(f"field of {where}", name, hints)
    values = {name: _decode(hints[name], value, f"{where}.{name}") for name, value in raw.items()}
    for name, value in values.items():
        if name in _RANGES:
            _demand_range(value, *_RANGES[name], f"{where}.{name}")
    return hint(**values)


def _demand_range(value: float, least: float, most: float, where: str) -> None:
    if not least <= value <= most:
        expected = f"at least {least}" if most == math.inf else f"{least} to {most}"
        raise UsageError(f"{where}: expected {expected}, got {value}")


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    return typing.get_type_hints(of)


def _decode_union(members: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw is None and type(None) in members:
        return None
    for member in members:
        named = isinstance(raw, dict) and raw.get("kind") == getattr(member, "kind", None)
        if dataclasses.is_dataclass(member) and named:
            return _decode(member, raw, where)
    rest = [m for m in members if m is not type(None) and not dataclasses.is_dataclass(m)]
    if rest:
        return _decode(rest[0], raw, where)
    raise UsageError(f"{where}: expected an object whose kind is gpt, vit or odd, got {raw!r}")
