"""Reading and editing whole parameters of the reference engine, and its loss scaler as a state machine."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
import torch.distributed as dist
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor, nn

import zerobench
from zerobench import subjects
from zerobench.driver import run_step, start
from zerobench.errors import Disagreement
from zerobench.oracles.scaler import LossScaler
from zerobench.scenario import LossScale, Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.strategies import drawn, models, scenarios
from zerobench.suites.support.trials import TIME_LIMIT, Trials
from zerobench.workload.data import held_out


@drawn(scenarios(model=models(), steps=2), share=0.5)
def test_evaluation_sees_the_trained_values(bits: Trials, scenario: Scenario) -> None:
    """After training, an evaluation's loss on rank 0 is the canonical trainer's, bit for bit."""
    trajectories, expected = bits.run_beside_canonical(scenario, ["evaluation"])
    bits.agree(trajectories, expected, ["evaluation"])


@drawn(st.tuples(scenarios(steps=1), st.sampled_from([None, 0, 1]), st.integers(0, 3)), share=0.5)
def test_edits_persist(reference: Trials, scenario: tuple[Scenario, int | None, int]) -> None:
    """What is written inside GatheredParameters is there afterwards, on every rank, in parameter and master."""
    one, modifier, which = scenario
    modifier = None if modifier is None else modifier % one.world
    reference.ran += 1
    for rank, (parameter, master, untouched) in enumerate(
        reference.pool.run(_edit, reference.name, one, modifier, which, world=one.world, timeout=TIME_LIMIT)
    ):
        if not (parameter == 0.5).all() or not (master == 0.5).all():
            raise Disagreement(f"rank {rank} lost the edit: {parameter} (master {master}) in {one.to_json()}")
        if not untouched:
            raise Disagreement(f"rank {rank}: reading alone moved a master in {one.to_json()}")


def _edit(
    group: dist.ProcessGroup, name: str, scenario: Scenario, modifier: int | None, which: int
) -> tuple[Tensor, Tensor, bool]:
    subject = start(subjects.load(name), scenario, group)
    assert isinstance(subject, Reference)
    run_step(subject, scenario, 0, dist.get_rank(group))
    before = subject.parameters()
    with zerobench.GatheredParameters(subject.model):
        pass
    untouched = all(torch.equal(value, before[name]) for name, value in subject.parameters().items())
    trained = [p for p in subject.model.parameters() if p.requires_grad]
    chosen = trained[which % len(trained)]
    with zerobench.GatheredParameters([chosen], modifier_rank=modifier):
        if modifier is None or dist.get_rank(group) == modifier:
            chosen.data.fill_(0.5)
    subject.evaluate(held_out(scenario))
    master = zerobench.safe_get_full_fp32_param(chosen)
    assert master is not None
    with zerobench.GatheredParameters([chosen]):
        seen = chosen.detach().float().clone()
    subject.close()
    return seen, master, untouched


class ScalerMachine(RuleBasedStateMachine):
    """The engine's loss scale follows the model of DeepSpeed's state machine, step by step, on real fp16 steps."""

    @initialize(
        spec=st.builds(
            LossScale,
            initial_power=st.integers(0, 10),
            window=st.integers(1, 4),
            hysteresis=st.integers(1, 3),
            consecutive_hysteresis=st.booleans(),
            minimum=st.sampled_from([0.125, 1.0, 4.0]),
        )
    )
    def build(self, spec: LossScale) -> None:
        config = {
            "train_batch_size": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
            "fp16": {
                "enabled": True,
                "initial_scale_power": spec.initial_power,
                "loss_scale_window": spec.window,
                "hysteresis": spec.hysteresis,
                "consecutive_hysteresis": spec.consecutive_hysteresis,
                "min_loss_scale": spec.minimum,
            },
        }
        self.engine, *_ = zerobench.initialize(nn.Linear(1, 1, bias=False), config)
        self.model = LossScaler(spec)
        self.skipped = self.steps = 0

    @rule(overflow=st.booleans())
    def step(self, overflow: bool) -> None:
        x = torch.full((1, 1), float("inf") if overflow else 1.0, dtype=torch.float16)
        self.engine.backward(self.engine(x).float().sum())
        self.engine.step()
        overflow = overflow or self.model.scale >= 2.0**16  # which fp16 does not hold: the loss's own gradient is it
        self.model.update(overflow)
        self.steps += 1
        self.skipped += overflow

    @invariant()
    def same_scale(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.loss_scale == self.model.scale
            assert self.engine.global_steps == self.steps
            assert self.engine.skipped_steps == self.skipped


ScalerMachine.TestCase.settings = settings(deadline=None, stateful_step_count=25)
test_scaler_machine = ScalerMachine.TestCase
