"""Engines that are wrong in a rare case only: a combination of settings, a size, a rank, a late step.

Class of escape: a combination that is hardly ever drawn. In its case, each engine steps with twice the learning rate.
"""

from __future__ import annotations

from typing import ClassVar

import torch.distributed as dist
from torch import nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points
from zerobench.suites.support.sizes import sizes_of
from zerobench.workload.data import takes_route


class _Rare(Mutant):
    """Doubles the learning rates in the steps in which :meth:`applies`."""

    #: Its progress, too, if the engine schedules the rate: then it halves that of the next step.
    points_at: ClassVar[Points] = Points("optimizer_state", "parameters", "model_parameters", "progress")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.scenario = scenario
        super().__init__(model, scenario, group)

    @property
    def odd(self) -> Odd:
        assert isinstance(self.scenario.model, Odd)
        return self.scenario.model

    @property
    def offload(self) -> tuple[str, str]:
        """The place of the optimizer's states and of the parameters."""
        return self.scenario.optimizer_at, self.scenario.parameters_at

    def applies(self) -> bool:
        """Whether this step is wrong."""
        raise NotImplementedError

    def step(self) -> Outcome:
        factor = 2.0 if self.applies() else 1.0
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


class WrongInStage3WithBf16(_Rare):
    def applies(self) -> bool:
        return (self.scenario.stage, self.scenario.dtype) == (3, "bf16")


class WrongInStage2WithFp16AndThreeMicroSteps(_Rare):
    def applies(self) -> bool:
        return (self.scenario.stage, self.scenario.dtype, self.scenario.accumulation) == (2, "fp16", 3)


class WrongOnFourRanksInStage3WithFp16(_Rare):
    def applies(self) -> bool:
        return (self.scenario.world, self.scenario.stage, self.scenario.dtype) == (4, 3, "fp16")


class WrongOnThreeRanksWithFilesAndTwoMicroSteps(_Rare):
    def applies(self) -> bool:
        return (self.scenario.world, self.scenario.accumulation) == (3, 2) and self.offload[0] == "nvme"


class WrongOnOneRankInStage3(_Rare):
    def applies(self) -> bool:
        return (self.scenario.world, self.scenario.stage) == (1, 3)


class WrongWithOptimizerOnHostAndParametersInFiles(_Rare):
    def applies(self) -> bool:
        return self.offload == ("cpu", "nvme")


class WrongWithOptimizerInFilesAndParametersOnHost(_Rare):
    def applies(self) -> bool:
        return self.offload == ("nvme", "cpu")


class WrongInStage1OnHostWithBf16(_Rare):
    def applies(self) -> bool:
        return self.scenario.stage == 1 and self.scenario.dtype == "bf16" and self.offload[0] == "cpu"


class WrongWithTiedWeightsInStage3(_Rare):
    def applies(self) -> bool:
        return self.odd.tied and self.scenario.stage == 3


class WrongWithAnEmptyParameterOnFourRanks(_Rare):
    def applies(self) -> bool:
        return self.odd.empty and self.scenario.world == 4


class WrongWithAScalarInFp16(_Rare):
    def applies(self) -> bool:
        return self.odd.scalar and self.scenario.dtype == "fp16"


class WrongWithFrozenBlocksInFiles(_Rare):
    def applies(self) -> bool:
        return self.odd.frozen and self.offload[1] == "nvme"


class WrongWithFourDimensionsInStage2(_Rare):
    def applies(self) -> bool:
        return self.odd.high and self.scenario.stage == 2


class WrongWithTransposedAndThreeMicroSteps(_Rare):
    def applies(self) -> bool:
        return self.odd.transposed and self.scenario.accumulation == 3


class WrongWithRoutedBlocksOnThreeRanks(_Rare):
    def applies(self) -> bool:
        return self.odd.routed and self.scenario.world == 3


class WrongWithReusedBlocksAndReentrantRecomputation(_Rare):
    def applies(self) -> bool:
        return self.odd.reused and self.odd.recompute == "reentrant"


class WrongWithPipelinesBothWays(_Rare):
    def applies(self) -> bool:
        pipelines = self.scenario.pipeline_read and self.scenario.pipeline_write
        return pipelines and self.offload[0] == "nvme"


class WrongWithNothingOffloadedAtRatioZero(_Rare):
    def applies(self) -> bool:
        return self.offload[0] == "cpu" and self.scenario.offload_ratio == 0


class WrongWithAccumulatorsInFp16(_Rare):
    def applies(self) -> bool:
        return self.scenario.accumulator_dtype == "fp16"


class WrongWithBf16CommunicationOfFp16(_Rare):
    def applies(self) -> bool:
        return (self.scenario.dtype, self.scenario.communication_dtype) == ("fp16", "bf16")


class WrongWhenABucketIsAParameter(_Rare):
    def applies(self) -> bool:
        return self.scenario.reduce_bucket in sizes_of(self.odd)["parameter"]


class WrongWhenABucketIsOneMoreThanAParameter(_Rare):
    def applies(self) -> bool:
        return self.scenario.reduce_bucket - 1 in sizes_of(self.odd)["parameter"]


class WrongWhenASubGroupIsAUnit(_Rare):
    def applies(self) -> bool:
        return self.scenario.sub_group in sizes_of(self.odd)["unit"] and self.offload[0] == "nvme"


class WrongWhenTheGatherIsAUnit(_Rare):
    def applies(self) -> bool:
        return self.scenario.allgather_bucket in sizes_of(self.odd)["unit"]


class WrongWhenThePersistenceIsAParameter(_Rare):
    def applies(self) -> bool:
        return self.scenario.persistence in sizes_of(self.odd)["parameter"] and self.scenario.stage == 3


class WrongWhenTheChunkExceedsTheModel(_Rare):
    def applies(self) -> bool:
        return self.scenario.chunk > sizes_of(self.odd)["unit"][-1]


class WrongWithMoreThanTenThousandElements(_Rare):
    def applies(self) -> bool:
        return sizes_of(self.odd)["parameter"][-1] > 10_000


class WrongOnOneSampleAMicroStep(_Rare):
    def applies(self) -> bool:
        return self.scenario.micro_batch == 1 and self.scenario.accumulation == 3


class WrongFromTheFourthStep(_Rare):
    def applies(self) -> bool:
        return self.engine.global_steps >= 3


class WrongInTheEighthStep(_Rare):
    def applies(self) -> bool:
        return self.engine.global_steps == 7


class WrongFromTheTwentiethStep(_Rare):
    points_at = Points("optimizer_state", "parameters", "model_parameters", "losses", "gradients", "norm")

    def applies(self) -> bool:
        return self.engine.global_steps >= 19


class WrongOnTheLastOfFourRanks(_Rare):
    points_at = Points("optimizer_state", "parameters", "model_parameters", "losses", "reads")

    def applies(self) -> bool:
        return self.group.rank() == 3


class WrongOnTheSecondRankInStage0(_Rare):
    def applies(self) -> bool:
        return self.group.rank() == 1 and self.scenario.stage == 0


class WrongIfAThirdRankAloneUsesABlock(_Rare):
    def applies(self) -> bool:
        step = self.engine.global_steps
        leaves = range(self.scenario.leaves_of(step)) if self.odd.routed else ()
        users = {leaf % self.scenario.world for leaf in leaves if takes_route(self.scenario, step, leaf)}
        return len(users) == 1 and min(users) >= 2


RARE: list[type[Mutant]] = list(_Rare.__subclasses__())
