"""The engine's loss scaler as a state machine."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import nn

import zerobench
from zerobench.oracles.scaler import DeepSpeedScaler
from zerobench.scenario import LossScale


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
        self.model = DeepSpeedScaler(spec)
        self.skipped = self.steps = 0

    @rule(overflow=st.booleans())
    def step(self, overflow: bool) -> None:
        x = torch.full((1, 1), float("inf") if overflow else 1.0, dtype=torch.float16)
        self.engine.backward(self.engine(x).float().sum())
        self.engine.step()
        overflow = overflow or self.model.scale >= 2.0**16  # fp16 does not hold it: it is the loss's own gradient
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
