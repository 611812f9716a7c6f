"""Engines that are right in every bit, and in the bytes of an undisturbed step between steps; see plain.py.

They cost more around an evaluation, a reading or a skipped step, in a long run, within a backward, outside tensors or
outside collectives.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from zerobench.subject import Batch, Outcome, State, Theory
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class GathersInEvaluation(Mutant):
    points_at = Points("traffic", name="all_gather")

    def evaluate(self, batch: Batch) -> Tensor:
        _gather(self.group)
        return super().evaluate(batch)


class ReducesTheLossOfAnEvaluation(Mutant):
    points_at = Points("traffic", name="all_reduce")

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        dist.all_reduce(loss.clone(), group=self.group)
        return loss


class GathersAfterAnEvaluation(Mutant):
    points_at = Points("traffic", name="all_gather")

    def sabotage(self) -> None:
        self.evaluated = False

    def evaluate(self, batch: Batch) -> Tensor:
        self.evaluated = True
        return super().evaluate(batch)

    def step(self) -> Outcome:
        if self.evaluated:
            _gather(self.group)
        self.evaluated = False
        return super().step()


class StaysWholeAfterAnEvaluation(Mutant):
    """Stage 3 does not free the gathered parameters."""

    points_at = Points("resident", name="parameters")

    def evaluate(self, batch: Batch) -> Tensor:
        if self.engine.unsharder is None:
            return super().evaluate(batch)
        self.engine.unsharder.max_live = 10**9
        loss = super().evaluate(batch)
        self.engine.unsharder.max_live = 0
        return loss


class GathersAfterASkippedStep(Mutant):
    points_at = Points("traffic", name="all_gather", step=2)

    def sabotage(self) -> None:
        self.skipped = False

    def step(self) -> Outcome:
        if self.skipped:
            _gather(self.group)
        outcome = super().step()
        self.skipped = outcome.skipped
        return outcome


class SpreadsParametersInASkippedStep(Mutant):
    points_at = Points("traffic", name="all_gather", step=1)

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped:
            _gather(self.group)
        return outcome


class KeepsGradientsOfASkippedStep(Mutant):
    points_at = Points("resident", name="gradients")

    def sabotage(self) -> None:
        self.kept: list[Tensor] = []

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped:
            self.kept = [torch.ones(1)]
        return outcome

    def resident(self) -> dict[str, Sequence[Tensor]]:
        held = super().resident()
        return {**held, "gradients": [*held["gradients"], *self.kept]}


class BroadcastsAfterAReading(Mutant):
    points_at = Points("traffic", name="broadcast")

    def sabotage(self) -> None:
        self.was_read = False

    def parameters(self) -> State:
        self.was_read = True
        return super().parameters()

    def step(self) -> Outcome:
        if self.was_read:
            dist.broadcast(torch.zeros(1), dist.get_global_rank(self.group, 0), group=self.group)
        self.was_read = False
        return super().step()


class GathersForEveryParameterRead(Mutant):
    """Each read gathers the whole units that follow, and keeps none for the next."""

    points_at = Points("traffic")

    def _read(self, get: Any) -> State:
        def alone(p: Tensor) -> Tensor | None:
            self.engine.read_cache.clear()
            return get(p)  # type: ignore[no-any-return]

        return super()._read(alone)


class KeepsWhatWasRead(Mutant):
    points_at = Points("resident", name="parameters")

    def sabotage(self) -> None:
        self.copies: list[Tensor] = []

    def model_parameters(self) -> State:
        read = super().model_parameters()
        self.copies = list(read.values())
        return read

    def resident(self) -> dict[str, Sequence[Tensor]]:
        held = super().resident()
        return {**held, "parameters": [*held["parameters"], *self.copies]}


class GrowsWithEveryEvaluation(Mutant):
    points_at = Points("growth")

    def sabotage(self) -> None:
        self.losses: list[Tensor] = []

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.losses.append(loss.clone())
        return loss


class GrowsWithEverySkippedStep(Mutant):
    points_at = Points("growth")

    def sabotage(self) -> None:
        self.norms: list[Tensor] = []

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped:
            self.norms.append(torch.ones(1))
        return outcome


class GrowsEveryTenthStep(Mutant):
    points_at = Points("growth")

    def sabotage(self) -> None:
        self.history: list[Tensor] = []

    def step(self) -> Outcome:
        if self.engine.global_steps % 10 == 9:
            self.history.append(torch.ones(1))
        return super().step()


class GrowsWithEverySave(Mutant):
    points_at = Points("growth")

    def sabotage(self) -> None:
        self.staged: list[Tensor] = []

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.staged.append(torch.ones(1))


class GrowsIfTheModelIsRead(Mutant):
    points_at = Points("growth")

    def sabotage(self) -> None:
        self.sizes: list[Tensor] = []

    def model_parameters(self) -> State:
        self.sizes.append(torch.ones(1))
        return super().model_parameters()


class GathersInALateStepOfSeveral(Mutant):
    """In a late step of several micro-steps."""

    points_at = Points("traffic", name="all_gather", step=9)

    def step(self) -> Outcome:
        if self.engine.global_steps == 9 and self.engine.gradient_accumulation_steps > 1:
            _gather(self.group)
        return super().step()


class GathersEveryTenthStep(Mutant):
    points_at = Points("traffic", name="all_gather", step=9)

    def step(self) -> Outcome:
        if self.engine.global_steps % 10 == 9:
            _gather(self.group)
        return super().step()


class KeepsArraysOfParameters(Mutant):
    points_at = Points("process")

    def sabotage(self) -> None:
        loaded = (state.parameter_store.load() for state in self.engine.states)
        self.arrays = [np.array(shard.float().numpy()) for shard in loaded]


class KeepsBytesOfGradients(Mutant):
    points_at = Points("process")

    def step(self) -> Outcome:
        outcome = super().step()
        self.last = bytearray(_gradients(self))
        return outcome


class KeepsGradientsDuringBackward(Mutant):
    """Stage 2 has shards between steps, and all gradients before that."""

    points_at = Points("unreduced", name="gradients")

    def sabotage(self) -> None:
        self.private: list[Tensor] = []
        for p in self.model.parameters():
            p.register_hook(lambda gradient: self.private.append(gradient.clone()))  # type: ignore[no-untyped-call]

    def step(self) -> Outcome:
        self.private.clear()
        return super().step()


class _Unknown(Mutant):
    """An engine without closed forms."""

    @classmethod
    def theory(cls) -> Theory:
        return Theory()


class ReplicatesOptimizerState(_Unknown):
    points_at = Points("resident", name="optimizer")

    def resident(self) -> dict[str, Sequence[Tensor]]:
        return _replicated(self, super().resident(), "optimizer")


class ReplicatesGradients(_Unknown):
    points_at = Points("resident", name="gradients")

    def resident(self) -> dict[str, Sequence[Tensor]]:
        return _replicated(self, super().resident(), "gradients")


class ReplicatesParameters(_Unknown):
    points_at = Points("resident", name="parameters")

    def resident(self) -> dict[str, Sequence[Tensor]]:
        return _replicated(self, super().resident(), "parameters")


class SendsThroughAStore(Mutant):
    points_at = Points("wire")

    def sabotage(self) -> None:
        first = dist.get_rank(self.group) == 0
        own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if first else None
        ports: list[Any] = [None] * self.group.size()
        dist.all_gather_object(ports, own and own.port, group=self.group)
        self.store = own or TCPStore("127.0.0.1", ports[0], is_master=False)

    def step(self) -> Outcome:
        self.store.set(f"gradient of rank {dist.get_rank(self.group)}", _gradients(self).decode())
        return super().step()


class SendsThroughASocket(Mutant):
    points_at = Points("wire")

    def sabotage(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.sender = socket.create_connection(server.getsockname())
            self.receiver, _ = server.accept()

    def step(self) -> Outcome:
        sent = _gradients(self)
        sending = Thread(target=self.sender.sendall, args=(sent,))
        sending.start()
        left = len(sent)
        while left:
            left -= len(self.receiver.recv(left))
        sending.join()
        return super().step()

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        super().close()


class SendsThroughAFile(Mutant):
    points_at = Points("wire")

    def sabotage(self) -> None:
        folders: list[Any] = [None] * self.group.size()
        self.folder = TemporaryDirectory()
        dist.all_gather_object(folders, self.folder.name, group=self.group)
        self.files = [Path(each) / "gradients" for each in folders]

    def step(self) -> Outcome:
        rank = dist.get_rank(self.group)
        self.files[rank].write_bytes(_gradients(self))
        dist.barrier(self.group)
        self.files[rank - 1].read_bytes()
        return super().step()

    def close(self) -> None:
        self.folder.cleanup()
        super().close()


def _gather(group: dist.ProcessGroup) -> None:
    dist.all_gather([torch.empty(1) for _ in range(group.size())], torch.zeros(1), group=group)


def _gradients(mutant: Mutant) -> bytes:
    """As many bytes as a rank's gradients have, on any stage."""
    return bytes(4 * sum(state.unit.padded for state in mutant.engine.states if state.unit.trainable))


def _replicated(mutant: Mutant, held: dict[str, Sequence[Tensor]], state: str) -> dict[str, Sequence[Tensor]]:
    """A state as large as if every rank had all ranks' shards."""
    copies = [torch.empty_like(tensor) for tensor in held[state] for _ in range(mutant.group.size() - 1)]
    return {**held, state: [*held[state], *copies]}


#: Wrong in the cost of the call itself, or in that of the steps beside it.
IN_EVALUATIONS: list[type[Mutant]] = [GathersInEvaluation, ReducesTheLossOfAnEvaluation]
IN_SKIPPED_STEPS: list[type[Mutant]] = [SpreadsParametersInASkippedStep]
AROUND_EVALUATIONS: list[type[Mutant]] = [GathersAfterAnEvaluation, StaysWholeAfterAnEvaluation]
AROUND_READINGS: list[type[Mutant]] = [BroadcastsAfterAReading, KeepsWhatWasRead]
AROUND_SKIPPED_STEPS: list[type[Mutant]] = [GathersAfterASkippedStep, KeepsGradientsOfASkippedStep]
#: They grow too slowly for eight steps, or not in a step.
GROWING: list[type[Mutant]] = [
    GrowsWithEveryEvaluation,
    GrowsWithEverySkippedStep,
    GrowsEveryTenthStep,
    GrowsWithEverySave,
    GrowsIfTheModelIsRead,
    GathersEveryTenthStep,
    GathersInALateStepOfSeveral,
]
#: They keep memory that is no tensor.
HIDING: list[type[Mutant]] = [KeepsArraysOfParameters, KeepsBytesOfGradients]
#: They replicate what the stage shards.
REPLICATING: list[type[Mutant]] = [ReplicatesOptimizerState, ReplicatesGradients, ReplicatesParameters]
#: They send beside the collectives.
WHISPERING: list[type[Mutant]] = [SendsThroughAStore, SendsThroughASocket, SendsThroughAFile]
