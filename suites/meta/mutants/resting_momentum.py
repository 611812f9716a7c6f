"""An engine that loses SGD's momentum in a step whose momentum is zero.

Class of escape: a value of a schedule that is never drawn. It is right as long as the momentum is not zero.
"""

from __future__ import annotations

from typing import ClassVar

from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _Rests(Mutant):
    points_at: ClassVar[Points] = Points("optimizer_state", "parameters", "model_parameters", "losses", "reads")

    def step(self) -> Outcome:
        outcome = super().step()
        momenta = [group.get("momentum") for group in self.optimizer.param_groups]
        if "momentum_buffer" in self.optimizer.state_names and not outcome.skipped:
            self.after(momenta)
        return outcome

    def after(self, momenta: list[float | None]) -> None:
        """Break the buffers after an update with these momenta."""
        raise NotImplementedError


class ClearsTheBufferOfAGroupThatRests(_Rests):
    def after(self, momenta: list[float | None]) -> None:
        of_parameter = self.engine.stepper._group
        for state in self.engine.stepper.states:
            for window in state.optimizer_store.update_slices(state.portion):
                start, stop = (state.extent.start + each for each in (window.start, window.stop))
                for slot, lo, hi in state.unit.pieces(start, stop):
                    if not momenta[of_parameter[slot.index]]:
                        window.optimizer[0][lo - start : hi - start].zero_()
                window.follow(window.start, window.stop)


RESTING: list[type[_Rests]] = [ClearsTheBufferOfAGroupThatRests]
