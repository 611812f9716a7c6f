"""Subject: the protocol behind which an engine is put under test.

The harness drives every engine through the same few calls, on every rank, in the same order::

    subject = Engine(model, scenario, group)      # all ranks; the models are equal
    for each step:
        subject.set_micro_steps(number)            # only if some steps have fewer than A
        for each of the A micro-steps, or of this number:
            loss = subject.micro_step(batch)       # forward and backward of one leaf
        subject.zero_gradients(names)              # only if the client edits them in this step; a collective
        gradients = subject.gradients()            # only if requested; a collective
        outcome = subject.step()
        state = subject.parameters(), ...          # only if requested; collectives
        subject.save(directory)                    # only if the Scenario resumes the run; then close(), and a new
        subject.load(directory)                    # subject of another model loads the state; collectives
    subject.close()

All ranks make every reading call together. It returns full, unsharded values, so an engine may use collectives to
answer. ``resident`` is local: it names the tensors that this rank holds.

Subjects alternate in one process, a step of each, or a step of one within a step of another: if an engine patches
torch, it restores torch before a call returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.reasons import reason_of
from zerobench.recording import OffloadBytes, State, Traffic
from zerobench.scenario import NormType, Scaler, Scenario

__all__ = ["CONTRACT", "Batch", "Bytes", "Offloaded", "Outcome", "Policies", "State", "Subject", "Theory"]

Batch = Mapping[str, Any]
#: Bytes by category.
Bytes = dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """The result of one optimizer step: ``norm`` is of the mean gradient before clipping, None if not computed."""

    norm: float | None
    skipped: bool = False
    loss_scale: float = 1.0


@dataclass(frozen=True)
class Policies:
    """The choices in which engines differ and each is right; the oracles follow those of the engine under test.

    The defaults are the contract's. A difference that an engine does not declare is a fault.
    """

    #: Of a parameter that no leaf of a step used: none, so that the optimizer leaves it alone, or zeros, so that weight
    #: decay and momentum move it.
    inactive_gradient: Literal["none", "zero"] = "none"
    #: The fp32 masters are the model's original values, or those rounded to the Scenario's dtype.
    masters_from: Literal["original", "rounded"] = "original"
    #: A step that is skipped advances the optimizer's step count.
    counts_skipped_steps: bool = False
    #: A trained parameter keeps the model's strides, or becomes contiguous, which makes torch add in another order.
    strides: Literal["kept", "contiguous"] = "kept"
    #: Under autocast a weight with several uses is cast once, so that its gradients are added in 16 bits, or for each.
    casts: Literal["once", "each_use"] = "once"
    #: One of the subject's ``settings``, without which every rank keeps more than its shard, as the documentation says.
    sharded_with: str = ""
    #: One of the subject's ``settings``, with which each forward begins with the buffers of rank 0.
    buffers_with: str = ""


#: The choices of docs/reference/contract.md.
CONTRACT = Policies()


@dataclass(frozen=True)
class Offloaded:
    """States that a rank keeps off the device: tensors in host memory, and bytes in files, each by category."""

    host: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)


class Theory:
    """The closed forms of an engine: bytes and calls on ``rank``, from the Scenario and the model's shapes alone.

    A method returns None if its form is not known. No earlier step was skipped; steps count from 0.
    """

    #: For the message of a difference: the formula of a number, by the ledger's part and the name in it.
    formulas: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def memory(self, scenario: Scenario, model: nn.Module, rank: int = 0, steps: int = 1) -> Bytes | None:
        """Bytes of ``parameters``, ``gradients`` and ``optimizer`` on the device, after ``steps`` steps."""
        return None

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic] | None:
        """Calls and bytes by collective in one step: its A micro-steps and the update, without any reading."""
        return None

    def skipped(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic] | None:
        """Calls and bytes by collective in one step that is skipped, up to the decision and after it."""
        return None

    def evaluation(
        self, scenario: Scenario, model: nn.Module, rank: int = 0, index: int = 0
    ) -> dict[str, Traffic] | None:
        """Calls and bytes by collective in evaluation ``index``, from 0; ``max_live`` is 0."""
        return None

    def offload(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> OffloadBytes | None:
        """Bytes off the device after one step, and the bytes that the step moves."""
        return None

    def parameter_peak(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> int | None:
        """The peak bytes of the model's whole parameters in one step."""
        return None

    def unseen(self, scenario: Scenario, model: nn.Module, rank: int = 0) -> int:
        """Bytes of tensors between steps that Python does not reach, such as buckets of an engine in C++."""
        return 0


class Subject(ABC):
    """An engine under test on one rank; see the module's text for the order of calls.

    Once it is built, the given model keeps its parameters and buffers as objects from one call to the next, with the
    attributes that the client gives them.
    """

    name: ClassVar[str]
    #: The package of the engine, whose version a table of results shows; empty if it has none.
    distribution: ClassVar[str] = ""
    #: Held to the contract's bits (the canonical trainer, bit for bit) rather than to the error budget.
    promises_bits: ClassVar[bool] = False
    #: Its choices where more than one is right.
    policies: ClassVar[Policies] = CONTRACT
    #: Moves the model to the Scenario's device itself; otherwise the model is there already.
    moves: ClassVar[bool] = False
    #: Has :meth:`save` and :meth:`load`.
    resumes: ClassVar[bool] = False
    #: :meth:`load` also takes a checkpoint of another number of ranks.
    resumes_at_any_world: ClassVar[bool] = False
    #: It also takes one of another stage that the subject offers.
    loads_other_stages: ClassVar[bool] = False
    #: After a :meth:`load` the clipping and a static loss scale are those that the engine was built with.
    keeps_settings: ClassVar[bool] = True
    #: :meth:`load` also loads a part of the state, as the Scenario's ``loads`` says.
    loads_parts: ClassVar[bool] = False
    #: Such a load also takes parameters that were frozen in the saved engine and train in this one, or the reverse.
    loads_refrozen: ClassVar[bool] = False
    #: :meth:`load` may come between two micro-steps of a step, whose gradients are then gone.
    loads_within_steps: ClassVar[bool] = False
    #: A directory keeps several states: :meth:`save` and :meth:`load` are about the one that :attr:`tag` names.
    keeps_tags: ClassVar[bool] = False
    #: :meth:`save` saves :attr:`client_state`, and :meth:`load` sets it to the saved one.
    keeps_client_state: ClassVar[bool] = False
    #: :meth:`load` sets each rank's generators of torch, the device, Python and numpy to their states at the save.
    restores_generators: ClassVar[bool] = False
    #: If :meth:`load` raises, because a file is damaged or missing, all ranks raise, and the engine is as it was.
    survives_failed_loads: ClassVar[bool] = False
    #: If the client's own code raises in a forward or an evaluation on all ranks, the engine is as it was before. After
    #: a backward that has raised, it refuses to go on, or goes on as if that had not begun.
    survives_failures: ClassVar[bool] = False
    #: Hooks of the client on trained parameters change the gradients, if they are set before the engine is built.
    keeps_hooks: ClassVar[bool] = False
    #: So they do if they are set after it, and so do hooks of the client on the given model and on its modules.
    keeps_late_hooks: ClassVar[bool] = False
    #: Its states can be read within a forward on all ranks, and between it and its backward; and, if it :attr:`edits`,
    #: :meth:`set_parameters` may be called before a forward has used a parameter.
    answers_within_forwards: ClassVar[bool] = False
    #: An evaluation may be made in torch's inference mode, and training goes on after it.
    evaluates_in_inference_mode: ClassVar[bool] = True
    #: Several engines, each of a group of its own, train at the same time in threads of one process.
    trains_side_by_side: ClassVar[bool] = False
    #: Has :meth:`param_groups`.
    schedules: ClassVar[bool] = False
    #: Steps the Scenario's scheduler after each update (``zerobench.oracles.optimizer.scheduler_of`` makes it).
    steps_scheduler: ClassVar[bool] = False
    #: Computes the loss of a micro-step by :func:`zerobench.workload.forwards.loss_of`, which may call the model again.
    calls_again: ClassVar[bool] = False
    #: Has :meth:`set_micro_steps`.
    shortens: ClassVar[bool] = False
    #: Has :meth:`set_parameters`.
    edits: ClassVar[bool] = False
    #: Has :meth:`zero_gradients`.
    edits_gradients: ClassVar[bool] = False
    #: Gives every rank the parameters of rank 0's model when it is built.
    takes_rank_0: ClassVar[bool] = False
    #: It then gives every rank rank 0's buffers, too; each rank's are its own from then on.
    takes_buffers_of_rank_0: ClassVar[bool] = False
    #: Its settings, which change nothing in a step but the order of its sums; a Scenario's ``settings`` are some.
    settings: ClassVar[tuple[str, ...]] = ()
    #: Its ways to save and load beside the usual one, by name.
    savings: ClassVar[tuple[str, ...]] = ()
    #: The types of norm by which it clips.
    norm_types: ClassVar[tuple[NormType, ...]] = ("2",)
    #: Whose dynamic loss scale it has: the values of the Scenario's ``scaler``.
    scalers: ClassVar[tuple[Scaler, ...]] = ("deepspeed",)
    #: Works only if its group has every process, and is always the same.
    whole_world: ClassVar[bool] = False
    #: The hyperparameters of each parameter group before the first step; the harness fills them in.
    initial_groups: Sequence[Mapping[str, Any]] = ()
    #: The trained parameters that the Scenario freezes in some steps; the harness fills them in.
    resting: Sequence[nn.Parameter] = ()
    #: Values of the client that go into a checkpoint; the harness sets them before each save.
    client_state: Mapping[str, Any] = {}
    #: The name of the state that :meth:`save` saves and :meth:`load` loads, with :attr:`keeps_tags`; empty: the last.
    tag: str = ""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        """The reason if this engine does not offer the Scenario (not a failure), or None if it does."""
        return None

    @classmethod
    def lacks(cls, scenario: Scenario) -> str | None:
        """The reason if the Scenario needs an optional method that this class does not have, or None."""
        if scenario.schedules and not cls.schedules:
            return f"{cls.name} has no param_groups() in which a schedule sets hyperparameters"
        if scenario.engine_schedules and not cls.steps_scheduler:
            return f"{cls.name} does not step a scheduler itself"
        if scenario.resumes and not cls.resumes:
            return f"{cls.name} has no save() and load()"
        if (scenario.forwards != "one" or scenario.autocast) and not cls.calls_again:
            return f"{cls.name} does not compute its losses by zerobench.workload.forwards.loss_of()"
        if scenario.shortens and not cls.shortens:
            return f"{cls.name} has no set_micro_steps()"
        if scenario.edits and not cls.edits:
            return f"{cls.name} has no set_parameters()"
        if scenario.gradient_edits and not cls.edits_gradients:
            return f"{cls.name} has no zero_gradients()"
        if scenario.ranks_differ and not cls.takes_rank_0:
            return f"{cls.name} expects equal models on all ranks"
        if scenario.loads_part and not cls.loads_parts:
            return f"{cls.name} loads no part of a checkpoint"
        if scenario.frozen_in != "all" and not (cls.loads_refrozen and scenario.loads_part):
            return f"{cls.name} loads the optimizer states of the same parameters alone"
        if scenario.scales_dynamically and scenario.loss_scale.scaler not in cls.scalers:
            return f"{cls.name} does not move a loss scale as {scenario.loss_scale.scaler} does"
        return cls._lacks_setting(scenario)

    @classmethod
    def _lacks_setting(cls, scenario: Scenario) -> str | None:
        for name in scenario.settings:
            if name not in cls.settings:
                return f"{cls.name} has no setting {name!r}; it has {', '.join(cls.settings) or 'none'}"
        if scenario.saving not in ("", *cls.savings):
            return f"{cls.name} does not save by {scenario.saving!r}, but by {', '.join(cls.savings) or 'one way'}"
        if scenario.norm_type not in cls.norm_types:
            return f"{cls.name} has no gradient norm of type {scenario.norm_type}"
        return None

    @classmethod
    def needs_whole_world(cls, scenario: Scenario) -> bool:
        """Whether the group must have every process: in all Scenarios, or in this one."""
        return cls.whole_world

    @classmethod
    def not_offered(cls, scenario: Scenario) -> str | None:
        """The reason of :meth:`lacks`, of :meth:`unsupported`, or of the oracles; None: the harness runs it."""
        if (reason := cls.lacks(scenario) or reason_of(cls.unsupported, scenario)) is None and scenario.keeps_unloaded:
            return "a load of a part goes into a new engine: one that has trained keeps the rest of its own state"
        return reason

    @classmethod
    def theory(cls) -> Theory | None:
        """The closed forms that the accounting holds this engine to; None if no form is known."""
        return None

    @abstractmethod
    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        """Wrap ``model`` (fp32; on the scenario's device, or see :attr:`moves`).

        It is equal on all ranks of ``group``, except in a Scenario with ``ranks_differ``.
        """

    @abstractmethod
    def micro_step(self, batch: Batch) -> Tensor:
        """Forward (``model(**batch)`` is the mean loss of the leaf) and backward; returns the detached loss.

        The caller may write to the batch once it returns.
        """

    @abstractmethod
    def step(self) -> Outcome:
        """Apply the optimizer after the step's micro-steps, or skip on overflow."""

    def advance(self) -> None:
        """:meth:`step` without its outcome; an engine that can leave the outcome on the device does so."""
        self.step()

    def param_groups(self) -> Sequence[dict[str, Any]]:
        """The optimizer's parameter groups, in the same order at any time.

        A client's schedules set ``lr``, ``weight_decay``, ``eps`` and ``momentum``, ``betas`` or ``lr_decay`` in them
        before a step, or before its update, and the client reads them after it. A value is a float, or an int if it is
        whole; betas are a tuple of floats. It is called only if :attr:`schedules` is set.
        """
        raise NotImplementedError(f"{self.name} sets schedules and has no param_groups()")

    @abstractmethod
    def evaluate(self, batch: Batch) -> Tensor:
        """The loss of ``batch`` in eval mode without gradients, maybe called in inference mode; changes nothing."""

    @abstractmethod
    def parameters(self) -> State:
        """Full fp32 values (master weights if there are any) by name as ``named_parameters`` gives them."""

    @abstractmethod
    def model_parameters(self) -> State:
        """Full values in the dtype the forward uses, frozen parameters included."""

    @abstractmethod
    def gradients(self) -> State:
        """Full fp32 mean gradients (loss scale divided out, before clipping) of the parameters that received one.

        Called after the last micro-step and before :meth:`step`.
        """

    @abstractmethod
    def optimizer_state(self) -> dict[str, State]:
        """Full optimizer state: parameter name -> torch's key (``exp_avg``, ...) -> tensor of the parameter's shape;
        zeros, or left out, for a parameter that was not updated yet."""

    def counters(self) -> Mapping[str, int] | None:
        """The engine's public counters, those that it has of ``global_steps``, ``skipped_steps``, ``micro_steps`` and
        ``global_samples``; None if it counts nothing. Local, between steps.

        A skipped step counts in each of them.
        """
        return None

    @abstractmethod
    def resident(self) -> dict[str, Sequence[Tensor]]:
        """The tensors of training state this rank holds now, by ``parameters``, ``gradients``, ``optimizer``.

        fp32 master weights count as ``optimizer``, as in the ZeRO paper's K. Between steps; each storage once.
        :meth:`offloaded` names the states that are not on the device.
        """

    def offloaded(self) -> Offloaded:
        """This rank's states in host memory and in files: ``resident``'s categories and ``buffers``. Between steps.

        If the device is the CPU the two are one memory; the setting counts.
        """
        return Offloaded()

    def set_micro_steps(self, number: int) -> None:
        """The next step has this many micro-steps: the Scenario's ``accumulation``, or fewer. Between steps.

        The step divides the sum of its gradients by the ranks times ``accumulation``, however many micro-steps it has.
        It is called before each step of a Scenario with short steps, and only if :attr:`shortens` is set.
        """
        raise NotImplementedError(f"{self.name} sets shortens and has no set_micro_steps()")

    def set_parameters(self, values: State) -> None:
        """Set trained parameters: the fp32 values on all ranks, by name, with any strides; between steps. A collective.

        Master weights take the values, and the model's parameters the values in their dtype. The caller may write to
        the tensors once it returns. Another call may follow at once, for other parameters. It is called only if
        :attr:`edits` is set.
        """
        raise NotImplementedError(f"{self.name} sets edits and has no set_parameters()")

    def zero_gradients(self, names: Collection[str]) -> None:
        """Let the gradients of these trained parameters be zeros; one that received none stays without. A collective.

        Called after the last micro-step and before :meth:`step`, whose norm is that of the edited gradients; another
        call may follow at once, for other parameters. It is called only if :attr:`edits_gradients` is set.
        """
        raise NotImplementedError(f"{self.name} sets edits_gradients and has no zero_gradients()")

    def save(self, directory: Path) -> None:
        """Save the training state of all ranks to a directory that all ranks see; between steps. A collective: it
        returns on no rank before the state can be loaded.

        The directory is empty, or holds an earlier state of the run, which other ranks may have saved; it may also hold
        files of the client, which stay. Its path may be relative to the working directory.

        It is called only if :attr:`resumes` is set, as :meth:`load` is.
        """
        raise NotImplementedError(f"{self.name} sets resumes and has no save()")

    def load(self, directory: Path) -> None:
        """Load the last state that a subject of the same class and Scenario saved in the directory; between steps.

        The client may have moved the directory since. Its files stay as they are.

        If :attr:`loads_parts` is set, it loads the part that ``scenario.loads`` names.

        If :attr:`resumes_at_any_world` is set, the Scenario that saved may have another world and accumulation.
        """
        raise NotImplementedError(f"{self.name} sets resumes and has no load()")

    def close(self) -> None:
        """Free hooks, files and groups that outlive the object; called once, also after a failure."""
