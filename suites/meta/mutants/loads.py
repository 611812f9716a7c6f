"""Engines that load more or less of a checkpoint than the client asked for, or other bytes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.checkpoint import apply, loading, matching, pieces, progress, shard_file
from zerobench.engine.checkpoint.apply import Values
from zerobench.engine.checkpoint.matching import Choice, Want
from zerobench.engine.checkpoint.pieces import FROZEN
from zerobench.engine.checkpoint.plain import decode
from zerobench.engine.checkpoint.record import Contents, read
from zerobench.engine.checkpoint.safetensors import memory_of
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.client import LATER
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES, Points

_PROGRESS = Points("progress")


class _Patched(Mutant):
    """Saves and loads with functions of the engine replaced."""

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        """The replacements."""
        raise NotImplementedError

    def save(self, directory: Path) -> None:
        with self._patched():
            super().save(directory)

    def load(self, directory: Path) -> None:
        with self._patched():
            super().load(directory)

    def _patched(self) -> ExitStack:
        stack = ExitStack()
        for each in self.patches():
            stack.enter_context(each)
        return stack


class _LoadsOtherValues(_Patched):
    """Asks for other ranges of the checkpoint."""

    points_at: ClassVar[Points | tuple[Points, ...]] = VALUES

    def wanted(self, find: Callable[[Choice], list[Want]], choice: Choice) -> list[Want]:
        """The ranges; ``find(choice)`` are the right ones."""
        raise NotImplementedError

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        def sabotaged(parts: Any, saved: Any, choice: Choice) -> list[Want]:
            return self.wanted(lambda each: matching.wants(parts, saved, each), choice)

        return [mock.patch.object(loading, "wants", sabotaged)]


class LoadsMomentsOfEveryLoad(_LoadsOtherValues):
    """A load without optimizer states or of the model alone loads the moments as well, and no step counts."""

    def wanted(self, find: Callable[[Choice], list[Want]], choice: Choice) -> list[Want]:
        return find(replace(choice, optimizer=True))


class ThawsWithTheModelsValues(_LoadsOtherValues):
    """A parameter that was frozen in the saved engine and trains in this one keeps the new model's value."""

    def wanted(self, find: Callable[[Choice], list[Want]], choice: Choice) -> list[Want]:
        return [each for each in find(choice) if _kinds(each) != ("master", "frozen")]


class FreezesWithTheModelsValues(_LoadsOtherValues):
    """A parameter that trained in the saved engine and is frozen in this one keeps the new model's value."""

    def wanted(self, find: Callable[[Choice], list[Want]], choice: Choice) -> list[Want]:
        return [each for each in find(choice) if _kinds(each) != ("frozen", "master")]


class CutsWhatItFreezes(_Patched):
    """In bf16 a parameter that has trained, and is frozen in the engine that loads, is cut to bf16, not rounded."""

    points_at = VALUES

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        def cut(parts: Any, loaded: dict[str, Values]) -> None:
            for key, each in loaded.items() if self.scenario.dtype == "bf16" else ():
                if key.startswith(FROZEN) and each.tensor.dtype == torch.float32:
                    each.tensor.view(torch.int32).bitwise_and_(~0xFFFF)
            apply.set_states(parts, loaded)

        return [mock.patch.object(loading, "set_states", cut)]


def _kinds(want: Want) -> tuple[str, str]:
    return want.into.split(".", 1)[0], want.source.key.split(".", 1)[0]


class KeepsBuffersThatAreNotPersistent(_Patched):
    """Takes every buffer for a persistent one."""

    points_at = VALUES

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        return [mock.patch.object(each, "buffers", _every_buffer) for each in (pieces, matching, progress, apply)]


def _every_buffer(module: Any) -> dict[str, Tensor]:
    return dict(module.named_buffers())


class _AfterAPart(Mutant):
    """Right until a part of the state is loaded, and then changed; ``saved`` is what was saved."""

    points_at: ClassVar[Points | tuple[Points, ...]] = VALUES
    #: The loads that are wrong.
    wrong: ClassVar[tuple[str, ...]] = ("without_optimizer", "model")

    def after(self, saved: Contents) -> None:
        """Change the state."""
        raise NotImplementedError

    def load(self, directory: Path) -> None:
        super().load(directory)
        if self.scenario.loads in self.wrong:
            self.after(read(directory / (directory / "latest").read_text().strip()).contents)


class KeepsTheLossScaleOfEveryLoad(_AfterAPart):
    """Loads the loss scaler with the model."""

    def after(self, saved: Contents) -> None:
        self.engine.scaler.restore(**saved.loss_scaler.model_dump())


class RoundsTheMastersOfAModelAlone(_AfterAPart):
    """Takes the masters from the weights in 16 bits."""

    wrong = ("model",)

    def after(self, saved: Contents) -> None:
        self.edit_masters(lambda master: master.copy_(master.to(self.engine.config.dtype)))


class KeepsTheStepCountsOfEveryLoad(_AfterAPart):
    """Loads the step counts without the moments that they belong to."""

    def after(self, saved: Contents) -> None:
        for slot in self.engine.stepper.layout.trainable:
            self.engine.stepper.steps[slot.index] = saved.optimizer.steps.get(slot.name, 0)


class KeepsTheHyperparametersOfEveryLoad(_AfterAPart):
    """Loads the rates that a schedule had set."""

    wrong = ("without_optimizer",)

    def after(self, saved: Contents) -> None:
        self.set_rates([group.options["lr"] for group in saved.optimizer.groups])


class ForgetsTheSchedulerWithoutOptimizerStates(Mutant):
    """The engine's scheduler begins again if the optimizer states are not loaded."""

    points_at = Points("progress", *VALUES.parts)

    def load(self, directory: Path) -> None:
        if self.scenario.loads != "without_optimizer":
            super().load(directory)
            return
        _, self.client_state = self.engine.load_checkpoint(
            directory, load_optimizer_states=False, load_lr_scheduler_states=False
        )


class CountsTheStepsOfAModelAlone(_AfterAPart):
    """A load of the model alone loads the counters, too."""

    points_at = _PROGRESS
    wrong = ("model",)

    def after(self, saved: Contents) -> None:
        self.engine.global_steps, self.engine.skipped_steps = saved.global_steps, saved.skipped_steps


class TakesAllStepsForSkippedOnes(_AfterAPart):
    """Restores the number of skipped steps from that of all steps."""

    points_at = _PROGRESS
    wrong = ("all", "without_optimizer")

    def after(self, saved: Contents) -> None:
        self.engine.skipped_steps = saved.global_steps


class CountsMicroStepsFromALoad(_AfterAPart):
    points_at = _PROGRESS
    wrong = ("all", "without_optimizer")

    def after(self, saved: Contents) -> None:
        self.engine.accumulation.finished = 0


class CountsSkippedStepsAsNone(Mutant):
    """A step that is skipped is not counted among the steps."""

    points_at = _PROGRESS

    def counters(self) -> dict[str, int]:
        found = dict(super().counters())
        return found | {"global_steps": found["global_steps"] - found["skipped_steps"]}


class _ChangesTheClientState(Mutant):
    """Gives the client another state back."""

    points_at = _PROGRESS

    def changed(self, state: Any) -> Any:
        """The state that the client gets."""
        raise NotImplementedError

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.client_state = self.changed(self.client_state)


class ForgetsTheClientStateOnRankOne(_ChangesTheClientState):
    def changed(self, state: Any) -> Any:
        return {} if self.engine.ranks.rank == 1 else state


class LosesAnEmptyValue(_ChangesTheClientState):
    """Leaves None, and empty lists and dicts, out of a list or a dict."""

    def changed(self, state: Any) -> Any:
        if isinstance(state, dict):
            return {key: self.changed(each) for key, each in state.items() if not _is_nothing(each)}
        return [self.changed(each) for each in state if not _is_nothing(each)] if isinstance(state, list) else state


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, list | dict) and not value)


class WidensTensorsOfTheClient(_ChangesTheClientState):
    """Every tensor in the client's state comes back in fp32."""

    def changed(self, state: Any) -> Any:
        if isinstance(state, dict):
            return {key: self.changed(each) for key, each in state.items()}
        if isinstance(state, list):
            return [self.changed(each) for each in state]
        return state.float() if isinstance(state, Tensor) else state


class KeepsTheFirstClientState(Mutant):
    """A second checkpoint has the client's state of the first."""

    points_at = _PROGRESS

    def save(self, directory: Path) -> None:
        if (directory / "latest").exists():
            saved = read(directory / (directory / "latest").read_text().strip()).contents
            self.client_state = decode(saved.client_state)
        super().save(directory)


class ForgetsWhatALoadReturned(Mutant):
    """A save leaves out the values of the client that an earlier load has returned, if they have not changed."""

    points_at = _PROGRESS

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.returned = dict(self.client_state)

    def save(self, directory: Path) -> None:
        returned = getattr(self, "returned", {})
        self.client_state = {
            key: each for key, each in self.client_state.items() if key not in returned or each is not returned[key]
        }
        super().save(directory)


class _ReadsOtherBytes(_Patched):
    """Reads blocks wrongly, and checks none of them."""

    points_at = Points("parameters", "optimizer_state")

    def offset(self, index: int, start: int) -> int:
        """The byte of a piece at which block ``index`` is read, from its byte ``start`` on."""
        raise NotImplementedError

    def patches(self) -> Sequence[AbstractContextManager[Any]]:
        def sabotaged(descriptor: int, path: Path, stored: Any, size: int, start: int, target: Tensor) -> None:
            memory = memory_of(target)
            stop = start + len(memory)
            for index in range(start // shard_file.BLOCK, -(-stop // shard_file.BLOCK)):
                first, last = index * shard_file.BLOCK, (index + 1) * shard_file.BLOCK
                lo, hi = max(first, start), min(last, stop)
                at = stored.begin + self.offset(index, lo)
                shard_file._read(descriptor, memory[lo - start : hi - start], at, path)

        return [mock.patch.object(shard_file, "read", sabotaged)]


class ReadsTheSecondBlockFromTheFirst(_ReadsOtherBytes):
    def offset(self, index: int, start: int) -> int:
        return start - shard_file.BLOCK if index == 1 else start


class BeginsLaterBlocksAtTheirStart(_ReadsOtherBytes):
    """Ignores where in a block a range begins, except in the first one."""

    def offset(self, index: int, start: int) -> int:
        return index * shard_file.BLOCK if index else start


class TakesTheStaticScaleOfTheCheckpoint(Mutant):
    """A static loss scale becomes that of the engine that saved."""

    points_at = Points("loss_scale")

    def load(self, directory: Path) -> None:
        scaler = self.engine.scaler

        def restore(*, scale: float, **rest: Any) -> None:
            type(scaler).restore(scaler, scale=scale, **rest)
            scaler.scale = scale

        with mock.patch.object(scaler, "restore", restore):
            super().load(directory)


class LoadsTheFirstWorldsState(Mutant):
    """If other ranks have begun a directory, their state stays its last one."""

    points_at = Points("progress", *LATER.parts)

    def save(self, directory: Path) -> None:
        world, latest = directory / ".world", directory / "latest"
        begun = world.read_text() if world.exists() else str(self.group.size())
        kept = latest.read_text() if begun != str(self.group.size()) else None
        dist.barrier(self.group)
        super().save(directory)
        if dist.get_rank(self.group) == 0:
            world.write_text(begun)
            latest.write_text(kept or latest.read_text())
        dist.barrier(self.group)


class LeavesFilesOfFurtherRanks(TorchDdp):
    """Files of ranks that are no more stay in a directory, and the next load counts them."""

    points_at = LATER

    def save(self, directory: Path) -> None:
        with mock.patch.object(Path, "unlink"):
            super().save(directory)


#: Wrong if other ranks have begun the directory.
BEGUN_BY_OTHERS: list[type[Mutant] | type[TorchDdp]] = [LoadsTheFirstWorldsState, LeavesFilesOfFurtherRanks]
#: Wrong if the client builds the engine that loads with other settings.
OF_SETTINGS: list[type[Mutant]] = [TakesTheStaticScaleOfTheCheckpoint]
#: Wrong in a load of a part, or in the values that such a load converts.
OF_A_PART: list[type[Mutant]] = [
    *_LoadsOtherValues.__subclasses__(),
    CutsWhatItFreezes,
    KeepsTheLossScaleOfEveryLoad,
    RoundsTheMastersOfAModelAlone,
    KeepsTheStepCountsOfEveryLoad,
    KeepsTheHyperparametersOfEveryLoad,
    ForgetsTheSchedulerWithoutOptimizerStates,
    CountsTheStepsOfAModelAlone,
    KeepsBuffersThatAreNotPersistent,
]
#: Wrong in a counter, or in the client's state.
OF_PROGRESS: list[type[Mutant]] = [
    TakesAllStepsForSkippedOnes,
    CountsMicroStepsFromALoad,
    CountsSkippedStepsAsNone,
    *_ChangesTheClientState.__subclasses__(),
    KeepsTheFirstClientState,
    ForgetsWhatALoadReturned,
]
#: Wrong beyond the first block of a piece.
OF_BLOCKS: list[type[Mutant]] = [*_ReadsOtherBytes.__subclasses__()]
