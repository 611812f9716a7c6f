"""Bug: a fault that a released engine had, its source, and the property that must catch a mutant with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.layout import Slot
from zerobench.engine.state.unit import UnitState
from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Subject
from zerobench.suites.meta.mutants.plain import Mutant

#: The property that most bugs fail.
CANONICAL = "test_equals_the_canonical_trainer"
Made = TypeVar("Made", bound=type[Subject])


@dataclass(frozen=True)
class Bug:
    """What happened: the engine (and the versions, if they are known), its reports, and a sentence."""

    engine: str
    references: tuple[str, ...]  # owner/repository#number, of an issue or a pull request
    story: str
    caught_by: str  # the name of the property that must catch it


#: Every historical bug, by the mutant that has it.
BUGS: dict[type[Subject], Bug] = {}


def happened_in(engine: str, *references: str, story: str, by: str = CANONICAL) -> Callable[[Made], Made]:
    """Note that this mutant has a bug that ``engine`` had."""

    def note(mutant: Made) -> Made:
        BUGS[mutant] = Bug(engine, references, story, by)
        return mutant

    return note


class Historical(Mutant):
    """A mutant that knows its Scenario."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.scenario = scenario
        super().__init__(model, scenario, group)

    @property
    def odd(self) -> Odd:
        """The model's description."""
        assert isinstance(self.scenario.model, Odd)
        return self.scenario.model

    @property
    def offloads(self) -> bool:
        """Whether the optimizer's states are off the device."""
        return self.scenario.optimizer_at != "none"

    def trained_units(self) -> list[UnitState]:
        """The units with gradients."""
        return [state for state in self.engine.states if state.unit.trainable]

    def patch_begin(self, change: Callable[[bool], None]) -> None:
        """Call ``change(first)`` after the reducer has prepared a backward."""
        begin = self.engine.reducer.begin

        def changed(first: bool, last: bool, loss: Tensor | None) -> None:
            begin(first, last, loss)
            change(first)

        self.engine.reducer.begin = changed  # type: ignore[method-assign]

    def patch_gradients(self, change: Callable[[UnitState, Slot, Tensor], Tensor]) -> None:
        """Let ``change`` replace each gradient that this rank is about to reduce."""
        taken = self.engine.reducer._taken

        def changed(state: UnitState) -> list[Tensor | None]:
            pairs = zip(state.unit.slots, taken(state), strict=True)
            return [None if gradient is None else change(state, slot, gradient) for slot, gradient in pairs]

        self.engine.reducer._taken = changed  # type: ignore[method-assign]
