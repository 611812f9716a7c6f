"""Engines that forget to wait, in one place each; most are right by luck if no operation is late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerobench.engine.comm.collectives import Done
from zerobench.suites.meta.mutants.offload import ToFiles, ToHost, offloading_stores
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points
from zerobench.suites.support.late import ChangedWhileSent, Late, LateWork


class _Forgetful:
    """A list or a dict of handles that keeps its first contents."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _ForgetfulList(_Forgetful, list[Any]):
    pass


class _ForgetfulDict(_Forgetful, dict[Any, Any]):
    pass


def _passed_by(works: Iterable[Any]) -> list[Any]:
    """Receive the peers' messages, so that they do not hang, and drop them; returns no handles."""
    for work in works:
        late = getattr(work, "_work", work)  # of a gather by slices
        if isinstance(late, LateWork):
            late.work.wait()
    return []


class StepsOnSumsThatAreStillComingDown(ToHost, Mutant, Late):
    points_at = Points("gradients", "optimizer_state", "parameters")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            store._arrived = _ForgetfulDict()


class ReusesStagingThatIsStillGoingUp(ToHost, Mutant, Late):
    points_at = Points("model_parameters", "losses")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            store._leaving = _ForgetfulList(store._leaving)


class NeverJoinsItsCopies(ToHost, Mutant, Late):
    points_at = (Points("model_parameters", "losses"), Points("raised", name=ChangedWhileSent.__name__))

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            store.copies.join = lambda handle=None: None


class FoldsWhatHasNotArrived(Mutant, Late):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        reducer = self.engine.reducer
        drain = reducer._drain

        def hasty(allowed: int) -> None:
            for bucket in reducer._flying:
                _passed_by([bucket.work])
                bucket.work = Done()
            drain(allowed)

        reducer._drain = hasty  # type: ignore[method-assign]


class ComputesWithUnitsThatHaveNotArrived(Mutant, Late):
    points_at = Points("losses")

    def sabotage(self) -> None:
        unsharder = self.engine.unsharder
        if unsharder is not None:
            arriving = unsharder._arriving
            unsharder._arrive = lambda state: _passed_by(arriving.pop(state, []))  # type: ignore[method-assign,assignment]


class StepsOnOthersSumsThatHaveNotArrived(Mutant, Late):
    points_at = Points("optimizer_state", "parameters")

    def sabotage(self) -> None:
        self.engine.reducer._completing.add = _passed_by  # type: ignore[method-assign,assignment]


class GoesOnBeforeNewParametersHaveArrived(Mutant, Late):
    points_at = Points("model_parameters", "losses")

    def sabotage(self) -> None:
        gather = self.engine.stepper._all_gather_updated
        self.engine.stepper._all_gather_updated = lambda state: _passed_by(gather(state))  # type: ignore[method-assign]


class FillsBuffersThatAreBeingWritten(ToFiles, Mutant, Late):
    points_at = (
        Points("optimizer_state", "parameters", "model_parameters", "losses", "norm", "gradients"),
        Points("raised"),
    )

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            for buffer in store._buffers:
                buffer.free = lambda buffer=buffer: buffer


LATE_MUTANTS: list[type[Mutant]] = [
    StepsOnSumsThatAreStillComingDown,
    ReusesStagingThatIsStillGoingUp,
    NeverJoinsItsCopies,
    FoldsWhatHasNotArrived,
    ComputesWithUnitsThatHaveNotArrived,
    StepsOnOthersSumsThatHaveNotArrived,
    GoesOnBeforeNewParametersHaveArrived,
    FillsBuffersThatAreBeingWritten,
]
