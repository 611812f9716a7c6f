"""Engines that are right in every bit, and in the bytes of steps and between them; see plain.py and bytes.py.

Class of escape: a moment at which no meter looks. They hold more within a call, send more while they are built or
saved, keep what no state declares, write more to files, or leave something behind when they are closed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _Within(Mutant):
    def copy(self) -> Tensor:
        """Memory of as many bytes as the whole model has in fp32."""
        return torch.ones(sum(state.unit.padded for state in self.engine.states))

    def send(self) -> None:
        """All-reduce as many bytes."""
        dist.all_reduce(self.copy(), group=self.group)


class HoldsTheModelWithinAnUpdate(_Within):
    points_at = Points("within", name="update")

    def step(self) -> Outcome:
        copy = self.copy()
        outcome = super().step()
        del copy
        return outcome


class HoldsWhatWasReadWithinAnUpdate(Mutant):
    """Frees the gradients that a reading has made whole after the update."""

    points_at = Points("kept")

    def step(self) -> Outcome:
        held = self.engine.read_cache._wholes
        outcome = super().step()
        del held
        return outcome


class HoldsOffloadedStatesThatWereRead(Mutant):
    """Frees the offloaded optimizer states that a reading within a step has made whole after the update."""

    points_at = Points("kept")
    held: object = None

    def optimizer_state(self) -> dict[str, State]:
        found = super().optimizer_state()
        if self.scenario.offload_optimizer != "none" and self.engine.accumulation.begun:
            self.held = dict(self.engine.read_cache._wholes)
        return found

    def step(self) -> Outcome:
        outcome = super().step()
        self.held = None
        return outcome


class HoldsTheModelWithinAnEvaluation(_Within):
    points_at = Points("within", name="evaluation")

    def evaluate(self, batch: Batch) -> Tensor:
        copy = self.copy()
        loss = super().evaluate(batch)
        del copy
        return loss


class HoldsTheModelWithinAnEdit(_Within):
    points_at = Points("within", name="edit")

    def set_parameters(self, values: State) -> None:
        copy = self.copy()
        super().set_parameters(values)
        del copy


class HoldsTheModelWithinAnEditOfGradients(_Within):
    points_at = Points("within", name="edit of gradients")

    def zero_gradients(self, names: Collection[str]) -> None:
        copy = self.copy()
        super().zero_gradients(names)
        del copy


class HoldsTheModelWithinAReading(_Within):
    """Makes each state whole before it returns the first."""

    points_at = Points("within", name="reading")

    def optimizer_state(self) -> dict[str, State]:
        copies = [self.copy() for _ in range(2)]
        found = super().optimizer_state()
        del copies
        return found


class HoldsAllGradientsWithinAReading(_Within):
    points_at = Points("within", name="reading of gradients")

    def gradients(self) -> State:
        copies = [self.copy() for _ in range(2)]
        found = super().gradients()
        del copies
        return found


class DdpKeepsACopyOfTheModel(TorchDdp):
    """No form says what it may keep besides its states."""

    points_at = Points("undeclared")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.kept = [p.detach().clone() for p in model.parameters()]


class SendsTheModelAgainWhenItIsBuilt(_Within):
    points_at = Points("traffic", name="building")

    def sabotage(self) -> None:
        self.send()
        self.send()


class SendsEachStateAgainWhenItSaves(_Within):
    points_at = Points("traffic", name="saving")

    def save(self, directory: Path) -> None:
        super().save(directory)
        for _ in range(8):
            self.send()


class SendsEachStateInALoad(_Within):
    """Ranks read equal parts of the files, and send them to all others."""

    points_at = Points("traffic", name="loading")

    def load(self, directory: Path) -> None:
        super().load(directory)
        for _ in range(8):
            self.send()


class SendsTheModelInALoadOfItAlone(_Within):
    """If the client loads the model alone, the ranks send it to each other in addition."""

    points_at = Points("traffic", name="loading")

    def load(self, directory: Path) -> None:
        super().load(directory)
        for _ in range(2 if self.scenario.loads_part else 0):
            self.send()


class SendsTheModelInAnEdit(_Within):
    """Each rank sends the values that the client has set to all others, which have them."""

    points_at = Points("traffic", name="an edit")

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        for _ in range(2):
            self.send()


class SendsTheModelInAReading(_Within):
    points_at = Points("traffic", name="a reading of parameters")

    def parameters(self) -> State:
        for _ in range(3):
            self.send()
        return super().parameters()


class SendsAllGradientsInAReading(_Within):
    points_at = Points("traffic", name="a reading of gradients")

    def gradients(self) -> State:
        for _ in range(3):
            self.send()
        return super().gradients()


class SendsAllGradientsInAnEdit(_Within):
    points_at = Points("traffic", name="an edit of gradients")

    def zero_gradients(self, names: Collection[str]) -> None:
        super().zero_gradients(names)
        for _ in range(2):
            self.send()


class SendsTheModelWhenItIsClosed(_Within):
    """Gives each rank the whole model back, as if the client went on with it."""

    points_at = Points("traffic", name="closing")

    def close(self) -> None:
        self.send()
        super().close()


class EachRankSavesAllStates(_Within):
    points_at = Points("files", name="saved")

    def save(self, directory: Path) -> None:
        super().save(directory)
        whole = self.copy().numpy().tobytes()
        (directory / f"whole-{dist.get_rank(self.group)}").write_bytes(3 * whole)


class LeavesADescriptor(_Within):
    points_at = Points("left", name="descriptors")

    def close(self) -> None:
        super().close()
        os.open(os.devnull, os.O_RDONLY)


class LeavesAThread(_Within):
    points_at = Points("left", name="threads")

    def close(self) -> None:
        super().close()
        Thread(target=Event().wait, daemon=True).start()


class LeavesTensors(_Within):
    points_at = Points("left", name="tensors")
    left: ClassVar[list[Tensor]] = []

    def close(self) -> None:
        self.left.append(self.copy())
        super().close()


class _InFiles(_Within):
    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.path = Path(scenario.nvme_path or os.devnull) / f"copy-{dist.get_rank(group)}"
        super().__init__(model, scenario, group)


class LeavesAFile(_InFiles):
    points_at = Points("left", name="files")

    def close(self) -> None:
        super().close()
        self.path.write_bytes(b"left")


class WritesASecondFile(_InFiles):
    points_at = Points("files", name="files")

    def step(self) -> Outcome:
        self.path.write_bytes(self.copy().numpy().tobytes())
        return super().step()

    def close(self) -> None:
        super().close()
        self.path.unlink(missing_ok=True)


class WritesEachEditToAFile(_InFiles):
    """A log of the values that the client has set, which no load reads."""

    points_at = Points("files", name="files")

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        with self.path.open("ab") as log:
            log.write(self.copy().numpy().tobytes())

    def close(self) -> None:
        super().close()
        self.path.unlink(missing_ok=True)


class OpensADescriptorInEachStep(_Within):
    points_at = Points("growth", name="descriptors")

    def step(self) -> Outcome:
        self.opened = [*getattr(self, "opened", []), os.open(os.devnull, os.O_RDONLY)]
        return super().step()

    def close(self) -> None:
        for each in self.opened:
            os.close(each)
        super().close()


class SendsAfterASave(_Within):
    points_at = Points("traffic", name="all_reduce")
    saved = False

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.saved = True

    def step(self) -> Outcome:
        if self.saved:
            self.send()
        self.saved = False
        return super().step()


class KeepsStatesAfterASave(_Within):
    points_at = Points("resident", name="optimizer")
    kept: tuple[Tensor, ...] = ()

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.kept = (*self.kept, self.copy())

    def resident(self) -> dict[str, Sequence[Tensor]]:
        found = super().resident()
        return found | {"optimizer": [*found["optimizer"], *self.kept]}


class KeepsAWideBufferOfNarrowSums(Mutant):
    """Holds an fp32 buffer as large as each accumulator in 16 bits, once it has added micro-steps."""

    points_at = Points("undeclared")

    def sabotage(self) -> None:
        finish, self.wide = self.engine.reducer.finish, list[Tensor]()

        def widened() -> None:
            finish()
            sums = [state.own_gradient for state in self.engine.states if state.unit.trainable]
            if self.scenario.accumulation > 1 and not self.wide and all(each.element_size() == 2 for each in sums):
                self.wide = [each.float() for each in sums]

        self.engine.reducer.finish = widened  # type: ignore[method-assign]


class ReducesLateAfterAnEvaluation(Mutant):
    """Reduces no gradient before the end of a backward, from the first evaluation on."""

    points_at = Points("unreduced", name="gradients")

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.engine.reducer.overlap = False
        return loss


#: By the property that catches them.
IN_AN_UPDATE = [HoldsTheModelWithinAnUpdate]
AFTER_A_READING = [HoldsWhatWasReadWithinAnUpdate]
OFFLOADED_AFTER_A_READING = [HoldsOffloadedStatesThatWereRead]
IN_AN_EDIT = [HoldsTheModelWithinAnEdit, HoldsTheModelWithinAnEditOfGradients]
IN_A_READING = [HoldsTheModelWithinAReading, HoldsAllGradientsWithinAReading]
IN_AN_EVALUATION = [HoldsTheModelWithinAnEvaluation]
UNDECLARED = [DdpKeepsACopyOfTheModel]
SENDING = [SendsTheModelAgainWhenItIsBuilt, SendsEachStateAgainWhenItSaves]
SENT_BY_CALLS = [
    SendsEachStateInALoad,
    SendsTheModelInALoadOfItAlone,
    SendsTheModelInAnEdit,
    SendsAllGradientsInAnEdit,
    SendsTheModelInAReading,
    SendsAllGradientsInAReading,
    SendsTheModelWhenItIsClosed,
]
SAVED = [EachRankSavesAllStates]
LEAVING = [LeavesADescriptor, LeavesAThread, LeavesTensors, LeavesAFile]
IN_FILES = [WritesASecondFile, WritesEachEditToAFile]
GROWING = [OpensADescriptorInEachStep]
AROUND_SAVES = [SendsAfterASave, KeepsStatesAfterASave]
HIDDEN = [KeepsAWideBufferOfNarrowSums]
WAITING = [ReducesLateAfterAnEvaluation]
