"""Scenarios of steps, and of loads, whose events draws seldom have together; see rare_values.py."""

from __future__ import annotations

from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Optimizer, Read, Scenario

RARE_STEPS = {
    # evaluations and a reading between the micro-steps of steps that end early, one of them twice within a step; the
    # forwards after them drop other elements again
    "readings within short steps": Scenario(
        model=Odd(width=5, hidden=(7, 2), scalar=True, dropout=0.25),
        steps=4,
        accumulation=4,
        short_steps=((0, 2), (2, 1)),
        chunk=32,
        clip=0.05,
        optimizer=Optimizer(lr=1e-2),
        reads=(
            Read("evaluation", 0, 1),
            Read("parameters", 1, 2),
            Read("evaluation", 2, 1),
            Read("evaluation", 2, 2),
        ),
    ),
    # buffers of fp32 beside weights of bf16: what a load loses of them shows after some more forwards
    "buffers after a load": Scenario(
        model=Odd(width=5, hidden=(7, 2), buffers=True),
        world=3,
        dtype="bf16",
        steps=4,
        accumulation=2,
        chunk=32,
        optimizer=Optimizer(lr=1e-2),
        resumes=(1,),
        reads=(Read("evaluation", 1, 1), Read("evaluation", 3, -1)),
    ),
    # a forward binds new tensors to the names of its buffers, as ``self.mean = ...`` does; an engine that has kept the
    # objects from when it was built saves old values, or loads into nothing
    "buffers that a forward replaces": Scenario(
        model=Odd(width=5, hidden=(7, 2), buffers=True, buffers_by="binding"),
        world=3,
        steps=4,
        accumulation=2,
        chunk=32,
        optimizer=Optimizer(lr=1e-2),
        resumes=(1, 3),
        loads_into="same",
        reads=(Read("evaluation", 1, 0), Read("evaluation", 2, 1), Read("evaluation", 3, -1)),
    ),
    # for engines that have the setting: each rank loads buffers of its own, and a forward begins with those of rank 0
    "buffers of rank 0 after a load": Scenario(
        model=Odd(width=5, hidden=(7, 2), buffers=True),
        world=3,
        steps=3,
        chunk=32,
        optimizer=Optimizer(lr=1e-2),
        resumes=(1, 2),
        settings=("forward_sync_buffers",),
    ),
    # a rate that a client has set to zero before a load stays, and so do betas of zero; the second group is a step
    # ahead
    "rate and betas of zero over loads": Scenario(
        model=Odd(width=5, hidden=(7, 2)),
        steps=6,
        chunk=32,
        optimizer=Optimizer(lr=1e-2, weight_decay=0.1, second_group=True),
        lr_factors=(1.0, 0.0, 0.0, 0.0, 1.0),
        momentum_factors=(1.0, 1.0, 1.0, 0.0),
        resumes=(2, 5),
    ),
    # so does Adagrad's decay of the rate
    "decay of the rate of zero over a load": Scenario(
        model=Odd(width=5, hidden=(7, 2)),
        steps=4,
        chunk=32,
        optimizer=Optimizer(name="adagrad", lr=0.1, lr_decay=0.5, second_group=True),
        momentum_factors=(1.0, 0.0),
        resumes=(2,),
    ),
    # every hyperparameter of three groups changes in steps before which the client sets it, and in steps in which it
    # does so between the last backward and the update
    "schedules of three groups": Scenario(
        model=Odd(width=5, hidden=(7, 2), scalar=True),
        world=3,
        steps=5,
        chunk=32,
        optimizer=Optimizer(lr=0.1, weight_decay=0.1, second_group=True, third_group=True),
        lr_factors=(1.0, 0.5, 2.0, 0.25, 1.0, 0.5, 2.0),
        weight_decay_factors=(1.0, 2.0, 0.0, 0.5, 2.0, 0.0, 1.0),
        momentum_factors=(1.0, 0.5, 0.25, 1.0, 0.5, 1.0, 0.25),
        eps_factors=(1.0, 2.0**20, 0.25, 2.0**20, 1.0, 0.25, 2.0**20),
    ),
    # steps that end early count like any other for a scale that grows, or that an overflow in one of them lowers
    "growth over short steps": Scenario(
        model=Odd(width=3, hidden=(2, 7)),
        dtype="fp16",
        steps=9,
        accumulation=2,
        short_steps=((1, 1), (3, 1), (5, 1)),
        chunk=32,
        loss_scale=LossScale(initial_power=4, window=3, hysteresis=1),
        poison=((3, 0),),
    ),
    # after one step all gradients are zero, and second moments of a short memory go down to subnormal numbers, below
    # an eps that no bound of an engine may raise
    "moments that fade": Scenario(
        model=Odd(width=5, hidden=(7,), norm=False, activation="tanh"),
        steps=10,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-12, eps=1e-12, betas=(0.5, 1e-4), weight_decay=0.0),
        zeroed=tuple((step, leaf) for step in range(1, 10) for leaf in range(2)),
    ),
    # without a first moment, as in RMSprop, but with both corrections of the bias; or with the first one alone
    "no first moment": Scenario(
        steps=3,
        chunk=32,
        optimizer=Optimizer(name="adam", betas=(0.0, 0.999), second_group=True),
    ),
    "no second moment": Scenario(
        steps=3, chunk=32, optimizer=Optimizer(name="adamw", betas=(0.9, 0.0), eps=1e-3, third_group=True)
    ),
    # losses are finite, and so are all gradients but those that the backward makes last, in weights that have the range
    # of fp32: on one rank, in one micro-step
    "overflow at the end of a backward": Scenario(
        model=Odd(width=5, hidden=(7, 2)),
        world=3,
        dtype="bf16",
        steps=4,
        accumulation=2,
        chunk=32,
        clip=0.05,
        reduce_bucket=64,
        poison=((1, 2), (3, 4)),
        poison_by="backward",
    ),
    # zeros of both signs and subnormal numbers that the client sets stay as they are where no step or no forward comes
    "zeros that a client sets": Scenario(
        model=Odd(width=5, hidden=(7, 2), unused=True),
        steps=3,
        chunk=32,
        optimizer=Optimizer(name="sgd", lr=0.1, second_group=True),
        edits=(1, 2),
        reads=(Read("parameters", 1, 0), Read("model_parameters", 2, 0)),
    ),
    # the first layer rests, as embeddings do: no gradient comes where a backward ends
    "first layer at rest": Scenario(
        model=Odd(width=5, hidden=(7, 2), scalar=True),
        world=3,
        steps=4,
        accumulation=2,
        chunk=32,
        reduce_bucket=64,
        optimizer=Optimizer(name="adam", lr=1e-2, weight_decay=0.1, second_group=True),
        frozen_steps=(0, 2),
        freezes_stem=True,
    ),
}
