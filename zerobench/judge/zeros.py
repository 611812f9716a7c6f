"""Zeros: their signs, which exact data leave open: a sign depends on the order of a sum and on its start."""

from __future__ import annotations

from dataclasses import replace

from zerobench.recording import Step, Trajectory
from zerobench.subject import Policies, State


def with_zeros_alike(trajectory: Trajectory, policies: Policies) -> Trajectory:
    """The recording with +0 for -0, and without the gradients of zeros if a missing one means the same."""
    return replace(trajectory, steps=[_positive(step, policies) for step in trajectory.steps])


def _positive(step: Step, policies: Policies) -> Step:
    kept = {name: g for name, g in step.gradients.items() if policies.inactive_gradient == "none" or bool(g.any())}
    return replace(
        step,
        losses=[loss + 0.0 for loss in step.losses],
        gradients=_unsigned(kept),
        parameters=_unsigned(step.parameters),
        model_parameters=_unsigned(step.model_parameters),
        optimizer_state={name: _unsigned(state) for name, state in step.optimizer_state.items()},
    )


def _unsigned(state: State) -> State:
    return {name: tensor + 0.0 for name, tensor in state.items()}
