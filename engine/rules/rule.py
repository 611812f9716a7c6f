"""Rule: the interface of one optimizer, from the names in a configuration to the update of an element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from zerobench.engine.ops.exact import replace, tiles
from zerobench.engine.ops.runs import Run, one_run
from zerobench.engine.section import Section

#: The hyperparameters of one rule: a frozen dataclass.
Values = TypeVar("Values")
#: A parameter group: the parameters and their hyperparameters, by torch's names.
Group = Mapping[str, Any]

Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class Rule(ABC, Generic[Values]):
    """One optimizer's rule. It keeps no state between steps, so all engines share one object.

    For each element of a parameter the engine keeps an fp32 master and one fp32 value for each of ``state_names``. All
    states start at zero. The update is elementwise: the engine cuts a parameter at the end of each shard and
    sub-group, and no bit of the result may depend on the cuts.
    """

    #: The names in ``optimizer.type``; a configuration may write them in any case.
    types: ClassVar[tuple[str, ...]]
    #: The section ``optimizer.params``.
    params: ClassVar[type[Section]]
    #: The torch optimizers that a client may pass instead of the configuration's.
    clients: ClassVar[tuple[type[torch.optim.Optimizer], ...]] = ()
    #: The options of these optimizers that the rule does not have; with one, the optimizer's own step is taken.
    lacks: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """The rule's name in a checkpoint."""
        return type(self).__name__

    def defaults(self, params: Section, type_: str) -> dict[str, Any]:
        """The default hyperparameters of a group, from ``params``; ``type_`` is one of ``types``."""
        return params.model_dump()

    def is_fresh(self, client: torch.optim.Optimizer) -> bool:
        """Whether the client's optimizer has not stepped yet."""
        return not client.state

    @abstractmethod
    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """torch's names of the states, in the order of the argument of ``update``."""

    @abstractmethod
    def values(self, group: Group, step: int) -> Values:
        """The current hyperparameters of a group for a parameter's ``step``, which counts from 1."""

    @abstractmethod
    def update(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factor: Tensor,
        values: Values,
    ) -> None:
        """Step flat [n] tensors in place.

        Args:
            master: fp32.
            gradient: fp32, bf16 or fp16; the rule reads ``gradient * factor``, rounded once to fp32.
            states: fp32, in the order of ``state_names``.
            copy: the parameter in the training dtype; receives the new master rounded to nearest even. None if the
                master itself is the parameter.
            factor: [1], fp32: the clip factor divided by leaves and loss scale. If it is NaN, nothing but ``copy``
                changes. It is on the device, and the host does not wait for its value.
            values: the hyperparameters.
        """

    def update_runs(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factors: Tensor,
        runs: Sequence[Run[Values]],
    ) -> None:
        """Step each run of flat [n] tensors in place; a rule with a kernel does it in one call.

        Args:
            factors: fp32, by parameter; see ``factor`` of :meth:`update`.
            runs: elements with one factor and the same hyperparameters.
        """
        for run in runs:
            parts = [state[run.here] for state in states]
            written = None if copy is None else copy[run.here]
            self.update(master[run.here], gradient[run.here], parts, written, run.factor(factors), run.values)


class KernelRule(Rule[Values]):
    """A rule with a kernel for all runs, which :meth:`update_runs` calls; a single run goes the same way."""

    def update(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factor: Tensor,
        values: Values,
    ) -> None:
        self.update_runs(master, gradient, states, copy, factor, one_run(master.numel(), values))


class TorchRule(Rule[Values]):
    """A rule in torch, the same on every device, that :meth:`step` defines."""

    @abstractmethod
    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: Values) -> Sequence[Tensor]:
        """The new master and the new states, in their order; the arguments stay as they are.

        Args:
            p: the master, fp32; a part of the elements.
            g: the gradient times the factor, fp32.
            states: fp32, in the order of ``state_names``.
            values: the hyperparameters.
        """

    def update(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factor: Tensor,
        values: Values,
    ) -> None:
        updates = ~factor.isnan()
        for part in tiles(master.numel()):
            p, *kept = before = [master[part], *(state[part] for state in states)]
            replace(updates, before, self.step(p, gradient[part].float() * factor, kept, values))
            if copy is not None:
                copy[part].copy_(p)
