"""Scenario: one frozen value that describes a run completely.

Hypothesis draws it, the benchmark grid lists it, and a report has a row for it. If it fails, the message prints it, so
that ``zerobench replay`` can run it again. It round-trips through JSON exactly.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from zerobench.errors import UsageError
from zerobench.json_values import decode, sparse
from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.placement import Mesh, Placement

Dtype = Literal["fp32", "bf16", "fp16"]
OffloadTarget = Literal["none", "cpu", "nvme"]
PoisonedBy = Literal["inf", "nan", "backward"]
ScheduledBy = Literal["client", "engine"]
Forwards = Literal["one", "two", "dropped", "no_grad", "metric"]
Loads = Literal["all", "without_optimizer", "model"]
LoadsInto = Literal["new", "trained", "same"]
FrozenIn = Literal["all", "saved", "loaded"]
NormType = Literal["2", "1", "inf"]
Scaler = Literal["deepspeed", "torch"]
Readable = Literal["gradients", "parameters", "model_parameters", "optimizer_state", "evaluation"]


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
    """fp16 loss scaling: static when ``static`` is positive, otherwise dynamic.

    A dynamic one moves as DeepSpeed's does or as torch.amp.GradScaler, which has no hysteresis and no minimum.
    """

    static: float = 0.0
    scaler: Scaler = "deepspeed"
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
    # (step, number): the client ends that step so many micro-steps early, but not before the first
    short_steps: tuple[tuple[int, int], ...] = ()
    forwards: Forwards = "one"  # of a micro-step, before its one backward: see zerobench.workload.forwards
    autocast: bool = False  # forwards run under torch.autocast in bf16; for fp32 parameters
    clip: float = 0.0  # 0 = off
    norm_type: NormType = "2"  # of the gradients' norm, as torch.nn.utils.clip_grad_norm_ takes it
    optimizer: Optimizer = field(default_factory=Optimizer)
    # of each group's initial learning rate, by step; the last one stays, and the second group is a step ahead
    lr_factors: tuple[float, ...] = ()
    scheduled_by: ScheduledBy = "client"  # the engine steps an lr_scheduler after each update; a client sets all itself
    weight_decay_factors: tuple[float, ...] = ()  # the same of its weight decay
    momentum_factors: tuple[float, ...] = ()  # the same of its momentum, or of both betas, or of its lr_decay
    eps_factors: tuple[float, ...] = ()  # the same of its eps
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
    # (step, leaf): that leaf's loss is multiplied by ``poison_by``, or the first layer's gradients alone are undefined
    poison: tuple[tuple[int, int], ...] = ()
    poison_by: PoisonedBy = "inf"
    zeroed: tuple[tuple[int, int], ...] = ()  # (step, leaf): that leaf's loss is zero, and so are its gradients
    reads: tuple[Read, ...] = ()  # in the middle of training; an engine must not depend on them
    edits: tuple[int, ...] = ()  # before these steps the client sets some of the trained parameters
    gradient_edits: tuple[int, ...] = ()  # in these the client zeroes gradients of some parameters before the update
    frozen_steps: tuple[int, ...] = ()  # in these, no parameter of the first block requires a gradient
    freezes_half: bool = False  # or none of every second parameter of the model, as if the client trained biases alone
    freezes_stem: bool = False  # or none of the first layer, as if the client froze embeddings
    ranks_differ: bool = False  # the ranks build different models; the engine takes that of rank 0
    resumes: tuple[int, ...] = ()  # before these steps a new engine loads the state that the last one saved
    loads: Loads = "all"  # the part of the state that it loads (docs/reference/contract.md, Loads)
    loads_into: LoadsInto = "new"  # an engine without steps, one that has trained, or the one that has saved
    frozen_in: FrozenIn = "all"  # of ``model.frozen``: in all engines, in the first one, or in those that have loaded
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    replicate: int = 1  # groups of ranks that each hold all shards: see mesh
    settings: tuple[str, ...] = ()  # of the engine, by their names in the subject: see Subject.settings
    saving: str = ""  # the engine's way to save and load, by its name in the subject; empty: the usual one

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
        """Micro-batches in one step over all ranks: L = N * A. A short step has fewer, and divides by L, too."""
        return self.world * self.accumulation

    def micro_steps_of(self, step: int) -> int:
        """The micro-steps of a step: A, or fewer if the client ends it early."""
        return max(1, self.accumulation - dict(self.short_steps).get(step, 0))

    def leaves_of(self, step: int) -> int:
        """The micro-batches of a step over all ranks."""
        return self.world * self.micro_steps_of(step)

    def route(self, step: int, leaf: int) -> bool:
        """Whether a leaf uses the routed block, for a model with one.

        By ranks: on one leaf of the step, on every second leaf, on none. The seed decides which leaf that one is, so
        that each rank of a world is once the only user. By steps: on all leaves of every second step. By micro-steps:
        on all ranks in every second micro-step, which are the odd ones of an even step and the even ones of an odd one.
        """
        assert isinstance(self.model, Odd)
        if self.model.routes == "steps":
            return step % 2 == 0
        if self.model.routes == "micro_steps":
            return (step + leaf // self.world) % 2 == 1
        return [leaf == (step + 1 + self.seed) % self.leaves, leaf % 2 == 1, False][step % 3]

    @property
    def shortens(self) -> bool:
        """Whether the client ends a step early."""
        return any(self.micro_steps_of(step) < self.accumulation for step in range(self.steps))

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
            "eps": self.eps_factors,
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

    def schedules_late(self, step: int) -> bool:
        """Whether the client sets hyperparameters between the last backward of a step and its update, or before it."""
        return step % 2 == 1

    def edits_before_save(self, step: int) -> bool:
        """Whether the client sets the parameters of a step just before the save that precedes it, or after the load.

        It does in Scenarios of an even seed, if the load takes the whole state: that of a part may round the values.
        """
        return step in self.edits and step in self.resumes and self.loads == "all" and self.seed % 2 == 0

    def saves_before_edit(self, step: int) -> bool:
        """Whether the client has saved the state before that edit, too, so that the second save replaces the first.

        It does in half of these Scenarios, by the seed.
        """
        return self.edits_before_save(step) and self.seed % 4 == 0

    @property
    def edits_in_place(self) -> bool:
        """Whether the client edits the model's own parameters, and no master weights; for engines with calls for both.

        It does in Scenarios of an odd seed. In 16 bits the two edits have different results, so it is of fp32.
        """
        return self.dtype == "fp32" and self.seed % 2 == 1

    @property
    def calls_apart(self) -> bool:
        """Whether the client edits parameters, or gradients, by two calls one after the other, each for some of them.

        It does in half of the Scenarios, by the seed.
        """
        return self.seed // 2 % 2 == 1

    @property
    def changes_neighbours(self) -> bool:
        """Whether the client edits neighbours, in every third Scenario by the seed; or every second parameter."""
        return self.seed % 3 == 1

    @property
    def carries_client_state(self) -> bool:
        """Whether the client gives a save the state that a load has given back, with the values that have changed.

        It does in Scenarios of an odd seed, if a save follows a load.
        """
        return len(set(self.resumes)) > 1 and self.seed % 2 == 1

    @property
    def moves_checkpoints(self) -> bool:
        """Whether the client moves the directory after each save, and the load finds the state at another place.

        It does in every third Scenario, by the seed.
        """
        return self.seed % 3 == 2

    @property
    def saves_once_loaded(self) -> bool:
        """Whether the client saves the state again right after a load, before a step, and loads that.

        It does in every fifth Scenario, by the seed, if the load takes the whole state.
        """
        return self.seed % 5 == 3 and self.loads == "all"

    @property
    def names_directories_relatively(self) -> bool:
        """Whether the client names the directory of a checkpoint relatively to the working directory.

        It does in half of the Scenarios, by the seed.
        """
        return self.seed // 2 % 2 == 0

    @property
    def sets_integers(self) -> bool:
        """Whether the client sets a hyperparameter that is a whole number as an ``int``, such as a weight decay of 0.

        It does in Scenarios of an even seed.
        """
        return self.seed % 2 == 0

    @property
    def bad_steps(self) -> set[int]:
        """The steps with a bad leaf, which are skipped."""
        return {step for step, leaf in self.poison if leaf < self.leaves_of(step)}

    @property
    def scales_dynamically(self) -> bool:
        """Whether the loss scale moves with the steps."""
        return self.dtype == "fp16" and not self.loss_scale.static

    def edits_gradients(self, step: int) -> bool:
        """Whether the client edits gradients in a step; not in a bad one, whose overflow this could undo."""
        return step in self.gradient_edits and step not in self.bad_steps

    @property
    def leaves_some_out(self) -> bool:
        """Whether a trained parameter may receive no gradient in a step."""
        return (isinstance(self.model, Odd) and self.model.leaves_some_out) or bool(self.frozen_steps)

    @property
    def resumed(self) -> bool:
        """Whether a new engine loads a saved state in the middle of the run."""
        return bool(self.resumes)

    @property
    def loads_part(self) -> bool:
        """Whether a new engine loads a part of a saved state."""
        return self.resumed and self.loads != "all"

    @property
    def keeps_unloaded(self) -> bool:
        """Whether an engine that has trained keeps values of its own, as the load brings a part of its state alone.

        The oracles do not know these values. Buffers that are not persistent are no part of a saved state.
        """
        buffers_stay = isinstance(self.model, Odd) and not self.model.persistent
        return self.resumed and self.loads_into != "new" and (self.loads_part or buffers_stay)

    def freezes(self, loaded: bool) -> bool:
        """Whether the parameters that ``model.frozen`` means are frozen, in an engine that has loaded or not."""
        return self.frozen_in == "all" or (self.frozen_in == "loaded") == loaded

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
        return json.dumps(sparse(self))

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
        found = typing.cast(Self, decode(cls, raw, "scenario"))
        assert found.mesh.world == found.world  # raises if there is no such mesh
        return found


def scaled(group: Mapping[str, Any], factors: Mapping[str, float]) -> dict[str, Any]:
    """The hyperparameters of a group times their factors; in a group with betas or an lr_decay, that of ``momentum`` is
    theirs."""
    found = {name: group[name] * factor for name, factor in factors.items() if name in group}
    if "betas" in group and "momentum" in factors:
        found["betas"] = tuple(beta * factors["momentum"] for beta in group["betas"])
    if "lr_decay" in group and "momentum" in factors:
        found["lr_decay"] = group["lr_decay"] * factors["momentum"]
    return found
