"""Engines with one fault each in their offload; see plain.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.comm.collectives import Done
from zerobench.engine.errors import OffloadError
from zerobench.engine.state.pages import page_memory
from zerobench.scenario import OffloadTarget, Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class Offloading:
    """Offloads the optimizer if the stage allows it, in sub-groups of which several fit into most shards."""

    place: ClassVar[OffloadTarget]

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        pipeline = {"pipeline_read": True, "pipeline_write": True}
        small = scenario.but(
            offload_optimizer=self.place, offload_ratio=1.0, sub_group=64, buffer_size=10_000, **pipeline
        )
        super().__init__(model, small, group)  # type: ignore[call-arg]


class ToHost(Offloading):
    place = "cpu"


class ToFiles(Offloading):
    place = "nvme"


class LeavesStaleParametersOnTheDevice(ToHost, Mutant):
    points_at = Points("model_parameters", "losses")

    def sabotage(self) -> None:
        for state in self.engine.states:
            state.parameter_store.accept = lambda start, values, *, host: mock.Mock()  # type: ignore[method-assign]
            state.parameter_store.view = lambda start, stop, *, host: None  # type: ignore[method-assign]


class LosesGradientsOnTheWayDown(ToHost, Mutant):
    points_at = Points("gradients", "optimizer_state")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            keep = store._keep
            store._keep = lambda portion, start, stop, values, keep=keep: keep(
                portion, start, stop, values if start == 0 else values * 0
            )


class RoundsGradientsOnTheWayDown(ToHost, Mutant):
    points_at = Points("gradients", "optimizer_state")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            keep = store._keep
            store._keep = lambda portion, start, stop, values, keep=keep: keep(
                portion, start, stop, values.bfloat16().to(values.dtype)
            )


#: An update; after a client's edit, which sets the states too, the first forward.
_SUB_GROUPS = Points("optimizer_state", "parameters", "losses", "gradients", "norm", "skipped")


class ReadsTheWrongSubGroup(ToFiles, Mutant):
    points_at = (_SUB_GROUPS, Points("raised", name=OffloadError.__name__))

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            last = store._order[-1]
            store._order[0].at["states"] = last.at["states"]


class SwapsTwoSubGroups(ToFiles, Mutant):
    points_at = _SUB_GROUPS

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            for one, other in zip(store._order, store._order[1:], strict=False):
                if one.stop - one.start == other.stop - other.start:
                    one.at["states"], other.at["states"] = other.at["states"], one.at["states"]
                    return


class ReadsBeforeItHasWritten(ToFiles, Mutant):
    """A read of a state returns the write before the last one."""

    points_at = _SUB_GROUPS

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            states = {group.at["states"] for group in store._order}
            store.file.write = _one_behind(store.file.write, states)


class ReusesABufferThatIsBeingWritten(ToFiles, Mutant):
    """A write takes its buffer's contents at the time of the next read."""

    points_at = Points("gradients", "optimizer_state", "parameters")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            write, read = store.file.write, store.file.read
            waiting: list[tuple[int, Tensor]] = []

            def late(offset: int, values: Tensor, after: Any = None, waiting: Any = waiting) -> Done:
                waiting.append((offset, values))
                return Done()

            def reading(*args: Any, write: Any = write, read: Any = read, waiting: Any = waiting) -> Any:
                for each in waiting:
                    write(*each).wait()
                waiting.clear()
                return read(*args)

            store.file.write, store.file.read = late, reading


class CopiesTwice(Mutant):
    """Right, but the bytes are not those of the algorithm."""

    points_at = Points("moved", name="to_host")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            down = store.copies.down

            def twice(device: Tensor, host: Tensor, down: Any = down) -> Any:
                down(device, host)
                return down(device, host)

            store.copies.down = twice


class RightInFiles(ToFiles, Reference):
    """Offloaded, and otherwise the reference; must pass."""


def offloading_stores(mutant: Mutant) -> list[Any]:
    """The optimizer store of the offloaded units, if there are any."""
    engine = mutant.engine
    trained = [state for state in engine.states if state.unit.trainable]
    return list(
        {id(s.optimizer_store): s.optimizer_store for s in trained if engine.stores.steps_off_device(s.unit)}.values()
    )


class _KnowsWhoSaved(Mutant):
    """A load that is wrong if the engine that saved has another value of :attr:`setting`."""

    points_at = Points("losses", "gradients", "norm", "skipped", "parameters", "model_parameters", "optimizer_state")
    setting: ClassVar[str]

    def save(self, directory: Path) -> None:
        super().save(directory)
        if self.group.rank() == 0:
            (directory / _SETTING).write_text(str(getattr(self.scenario, self.setting)))

    def load(self, directory: Path) -> None:
        super().load(directory)
        if self.is_wrong((directory / _SETTING).read_text(), str(getattr(self.scenario, self.setting))):
            self.edit_masters(lambda master: master[:1].zero_())

    def is_wrong(self, saved: str, own: str) -> bool:
        return saved != own


class LosesAStateBetweenPlaces(_KnowsWhoSaved):
    """If another place saved the optimizer's states, the first element of each master comes back as zero."""

    setting = "optimizer_at"

    def is_wrong(self, saved: str, own: str) -> bool:
        return (saved, own) == ("none", "nvme")


class LoadsOnItsOwnGrid(_KnowsWhoSaved):
    """So it does if an engine with other chunks saved them."""

    setting = "chunk"


#: Beside a checkpoint, the setting of the engine that has saved it.
_SETTING = "setting"


def _one_behind(write: Callable[..., Any], offsets: set[int]) -> Callable[..., Any]:
    """``write``, but at these offsets it writes the values of the call before, and nothing at first."""
    given: dict[int, Tensor] = {}

    def behind(offset: int, values: Tensor, after: Any = None) -> Any:
        if offset not in offsets:
            return write(offset, values, after)
        before = given.get(offset)
        given[offset] = page_memory(values.numel(), pin=False).copy_(values)
        return Done() if before is None else write(offset, before, after)

    return behind


#: Wrong if an engine with another offload loads.
BETWEEN_PLACES: list[type[Mutant]] = [LosesAStateBetweenPlaces, LoadsOnItsOwnGrid]
#: Engines with wrong numbers; CopiesTwice's are right, and its bytes are not.
OFFLOAD_MUTANTS: list[type[Mutant]] = [
    LeavesStaleParametersOnTheDevice,
    LosesGradientsOnTheWayDown,
    RoundsGradientsOnTheWayDown,
    ReadsTheWrongSubGroup,
    SwapsTwoSubGroups,
    ReadsBeforeItHasWritten,
    ReusesABufferThatIsBeingWritten,
]
