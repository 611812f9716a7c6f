"""Engines that are right in every bit, and hold or send more after or within an event; see plain.py and uses.py.

Class of escape: an event at which no meter looks: a short step, a load into an engine that has trained, the first edit,
a recomputation, an update in 16 bits, a save or a load itself, a block that trains again, a rate that a client changes,
a loss scale that grows or is at its minimum, a step in which a block rests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class KeepsTheSumsOfAShortStep(Mutant):
    points_at = Points("undeclared")

    def step(self) -> Outcome:
        if self.to_come is not None:
            self.kept = [state.gradient.clone() for state in self.engine.states]
        return super().step()


class KeepsTheGradientsThatItHasClipped(Mutant):
    """They are alive until the next backward."""

    points_at = Points("undeclared")
    kept: list[Tensor] | None = None

    def micro_step(self, batch: Batch) -> Tensor:
        self.kept = None
        return super().micro_step(batch)

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.norm is not None and 0 < self.scenario.clip < outcome.norm:
            self.kept = [torch.zeros(state.unit.padded) for state in self.engine.states]
        return outcome


class BroadcastsAfterASkippedStep(Mutant):
    """To be sure that no rank has taken it."""

    points_at = Points("traffic", name="broadcast")

    def step(self) -> Outcome:
        outcome = super().step()
        for state in self.engine.states if outcome.skipped else ():
            dist.broadcast(torch.zeros(state.unit.padded), group_src=0, group=self.group)
        return outcome


class KeepsZerosForABlockThatRests(Mutant):
    """A frozen block gets gradients of zeros, so that buckets fill; they are alive until the next step."""

    points_at = Points("undeclared")

    def micro_step(self, batch: Batch) -> Tensor:
        self.kept = [torch.zeros(p.shape) for p in self.trained.values() if not p.requires_grad]
        return super().micro_step(batch)


class KeepsTheStatesThatALoadReplaced(Mutant):
    points_at = Points("undeclared")

    def load(self, directory: Path) -> None:
        if self.engine.global_steps:
            self.kept = [p.clone() for p in self.parameters().values()]
        super().load(directory)


class KeepsTheValuesOfItsFirstEdit(Mutant):
    points_at = Points("undeclared")

    def sabotage(self) -> None:
        self.given: State = {}

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        self.given = self.given or {name: value.clone() for name, value in values.items()}


class KeepsOutputsThatItComputesAgain(Mutant):
    """Those of all linears, until the step."""

    points_at = Points("unreduced", name="gradients")

    def sabotage(self) -> None:
        self.kept: list[Tensor] = []
        if self.scenario.model.recompute == "non_reentrant":
            for module in self.model.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(lambda module, inputs, output: self.kept.append(output.detach()))

    def step(self) -> Outcome:
        self.kept.clear()
        return super().step()


class MakesAllGradientsFp32WithinAnUpdate(Mutant):
    points_at = Points("within", name="update")

    def sabotage(self) -> None:
        if self.scenario.dtype == "fp32":
            return
        step = self.engine.stepper.step

        def sabotaged(*args: Any) -> None:
            copies = [torch.ones(state.unit.padded) for state in self.engine.states]
            step(*args)
            del copies

        self.engine.stepper.step = sabotaged  # type: ignore[assignment, method-assign]


class MakesAllStatesWholeWithinALoad(Mutant):
    points_at = Points("within", name="load")

    def load(self, directory: Path) -> None:
        whole = [torch.ones(3 * state.unit.padded) for state in self.engine.states]
        super().load(directory)
        del whole


class SendsAgainAfterABlockHasRested(Mutant):
    """In the first step in which the block trains again."""

    points_at = Points("traffic")

    def sabotage(self) -> None:
        self.rested = False

    def micro_step(self, batch: Batch) -> Tensor:
        rests = any(not parameter.requires_grad for parameter in self.resting)
        if self.rested and not rests:
            dist.all_reduce(torch.ones(1), group=self.group)
        self.rested = rests
        return super().micro_step(batch)


class SendsARateThatTheClientHasChanged(Mutant):
    points_at = Points("traffic")

    def sabotage(self) -> None:
        self.sent = self.rates()

    def step(self) -> Outcome:
        if self.rates() != self.sent:
            self.sent = self.rates()
            dist.all_reduce(torch.tensor(self.sent), group=self.group)
        return super().step()


class SendsAWeightDecayThatTheClientHasChanged(Mutant):
    points_at = Points("traffic")

    def sabotage(self) -> None:
        self.sent = self._decays()

    def _decays(self) -> list[float]:
        return [group["weight_decay"] for group in self.optimizer.param_groups]

    def step(self) -> Outcome:
        if self._decays() != self.sent:
            self.sent = self._decays()
            dist.all_reduce(torch.tensor(self.sent), group=self.group)
        return super().step()


class SendsAgainAfterAnEditOfGradients(Mutant):
    """Each later update sends once more."""

    points_at = Points("traffic")
    edited = False

    def zero_gradients(self, names: Collection[str]) -> None:
        super().zero_gradients(names)
        self.edited = True

    def step(self) -> Outcome:
        outcome = super().step()
        if self.edited:
            dist.all_reduce(torch.zeros(100), group=self.group)
        return outcome


class KeepsTheValuesOfAnEditIn16Bits(Mutant):
    """The fp32 values of an edit of 16-bit parameters stay alive on every rank until the next one."""

    points_at = Points("undeclared")

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        if self.scenario.dtype != "fp32":
            self.held = {name: value.clone() for name, value in values.items()}


class SendsForMicroStepsThatDoNotCome(Mutant):
    """A short step sends zeros once more, as the micro-steps would that the client has left out."""

    points_at = Points("traffic")

    def step(self) -> Outcome:
        if self.to_come is not None:
            sizes = [state.unit.padded for state in self.engine.states if state.unit.trainable]
            for sent in map(torch.zeros, sizes):
                dist.all_to_all_single(torch.empty_like(sent), sent, group=self.group)
        return super().step()


class SendsAShortStepInFp32(Mutant):
    """The gradients of a short step, rounded to a communication dtype, travel as fp32."""

    points_at = Points("traffic")

    def sabotage(self) -> None:
        encode = self.engine.reducer.wire.encode

        def wide(values: Tensor) -> Tensor:
            return encode(values) if self.to_come is None else encode(values).float()

        self.engine.reducer.wire.encode = wide  # type: ignore[method-assign]


class GathersAgainInAFurtherForward(Mutant):
    """Each forward of a micro-step after the first one begins with a gather of all parameters."""

    points_at = Points("traffic")
    forwards = 0

    def sabotage(self) -> None:
        self.model.register_forward_pre_hook(self._gather)

    def _gather(self, *_: object) -> None:
        self.forwards += 1
        for state in self.engine.states if self.forwards > 1 and self.model.training else ():
            whole = torch.empty(state.unit.padded, dtype=state.dtype)
            self.engine.ranks.all_gather(whole, state.parameter_store.load()).wait()

    def micro_step(self, batch: Batch) -> Tensor:
        self.forwards = 0
        return super().micro_step(batch)


class SendsAgainAtTheLeastScale(Mutant):
    """If the loss scale is at its minimum, one number more is sent, to see if gradients vanish."""

    points_at = Points("traffic")

    def step(self) -> Outcome:
        scaler = self.engine.scaler
        if scaler.dynamic and scaler.scale == scaler.config.min_loss_scale:
            dist.all_reduce(torch.ones(1), group=self.group)
        return super().step()


class KeepsMastersWhenTheScaleGrows(Mutant):
    """A copy to go back to, until the scale grows again."""

    points_at = Points("growth")

    def sabotage(self) -> None:
        self.kept: list[Tensor] = []

    def step(self) -> Outcome:
        before = self.engine.loss_scale
        outcome = super().step()
        if self.engine.loss_scale > before:
            self.kept = [p.clone() for p in self.parameters().values()]
        return outcome


class DdpKeepsTheGradientsOfMasters(TorchDdp):
    """In 16 bits the fp32 gradients of the masters are alive until the next update makes others."""

    points_at = Points("undeclared")

    def _publish(self) -> None:
        for name, master in self.masters.items():
            self.working[name].copy_(master)


class _LoadsFromOthers(Mutant):
    """Notes the number of ranks that saved."""

    def save(self, directory: Path) -> None:
        super().save(directory)
        if dist.get_rank(self.group) == 0:
            (directory / "ranks").write_text(str(self.group.size()))
        dist.barrier(self.group)

    def from_others(self, directory: Path) -> bool:
        """Whether another number of ranks did."""
        return int((directory / "ranks").read_text()) != self.group.size()

    def states(self) -> Tensor:
        """Memory of as many bytes as masters and Adam's states of all ranks."""
        return torch.ones(3 * sum(state.unit.padded for state in self.engine.states))


class SendsAllStatesThatOthersSaved(_LoadsFromOthers):
    """Each rank reads a part, and the ranks send each other all of them, to cut its own out."""

    points_at = Points("traffic", name="loading elsewhere")

    def load(self, directory: Path) -> None:
        super().load(directory)
        if self.from_others(directory):
            dist.all_reduce(self.states(), group=self.group)
            dist.all_reduce(self.states(), group=self.group)


class HoldsAllStatesThatOthersSaved(_LoadsFromOthers):
    """Joins the files of all ranks before it cuts its part out."""

    points_at = Points("within", name="load elsewhere")

    def load(self, directory: Path) -> None:
        held = self.states() if self.from_others(directory) else None
        super().load(directory)
        del held


class HoldsTheModelWhileItIsBuilt(Mutant):
    """Makes masters and states of the whole model, and cuts its part out."""

    points_at = Points("within", name="building")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        whole = torch.ones(6 * sum(p.numel() for p in model.parameters()))
        super().__init__(model, scenario, group)
        del whole


class DdpEvaluatesACopy(TorchDdp):
    """Copies all weights for an evaluation, as with an average of them."""

    points_at = Points("within", name="evaluation")

    def evaluate(self, batch: Batch) -> Tensor:
        copies = [p.detach().clone() for p in self.model.parameters()]
        loss = super().evaluate(batch)
        del copies
        return loss


class WritesUnitsBackInAnEvaluation(Mutant):
    """Takes all units that an evaluation has read for changed ones."""

    points_at = Points("files", name="written")

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        if self.scenario.offload_param == "nvme":
            with tempfile.TemporaryFile(dir=self.scenario.nvme_path or None) as file:
                file.write(bytes(4 * sum(state.unit.padded for state in self.engine.states)))
        return loss


#: By the property that catches them.
IN_BUILDING = [HoldsTheModelWhileItIsBuilt]
IN_AN_EVALUATION_UNSHARDED = [DdpEvaluatesACopy]
WRITTEN = [WritesUnitsBackInAnEvaluation]
KEPT_IN_16_BITS = [DdpKeepsTheGradientsOfMasters]
FROM_OTHERS = [SendsAllStatesThatOthersSaved, HoldsAllStatesThatOthersSaved]
SENT_IN_SKIPPED_STEPS = [BroadcastsAfterASkippedStep]
SENT_IN_SHORT_STEPS = [SendsForMicroStepsThatDoNotCome, SendsAShortStepInFp32]
SENT_IN_FURTHER_FORWARDS = [GathersAgainInAFurtherForward]
GROWN_WITH_THE_SCALE = [KeepsMastersWhenTheScaleGrows]
LEFT_BY_EVENTS = [
    KeepsTheSumsOfAShortStep,
    KeepsTheGradientsThatItHasClipped,
    KeepsTheStatesThatALoadReplaced,
    KeepsZerosForABlockThatRests,
]
LEFT_BY_THE_FIRST_EDIT = [KeepsTheValuesOfItsFirstEdit]
EDITED_IN_16_BITS = [KeepsTheValuesOfAnEditIn16Bits]
COMPUTED_AGAIN = [KeepsOutputsThatItComputesAgain]
IN_AN_UPDATE_IN_16_BITS = [MakesAllGradientsFp32WithinAnUpdate]
IN_A_LOAD = [MakesAllStatesWholeWithinALoad]
SENT_AFTER_EVENTS = [
    SendsAgainAfterABlockHasRested,
    SendsARateThatTheClientHasChanged,
    SendsAWeightDecayThatTheClientHasChanged,
    SendsAgainAfterAnEditOfGradients,
    SendsAgainAtTheLeastScale,
]
