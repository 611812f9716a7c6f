"""Scenarios with models, and parts of models, that few draws or none have; see rare_values.py."""

from __future__ import annotations

from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.scenario import LossScale, Optimizer, Read, Scenario

RARE_MODELS = {
    # what few models have: three names of a weight, strides of images, buffers of fp64, hooks of their own
    "rare parts of a model": Scenario(
        model=Odd(width=5, hidden=(7, 2), transposed=True, rare_parts="all"),
        world=3,
        dtype="bf16",
        steps=3,
        accumulation=2,
        clip=0.05,
        chunk=32,
        optimizer=Optimizer(lr=1e-2, second_group=True),
        resumes=(2,),
        reads=(Read("evaluation", 0, -1), Read("parameters", 1, 1)),
    ),
    # evaluations of two batches in a row
    "language model": Scenario(
        model=Gpt(width=16, layers=2, heads=2, context=8, tied=True),
        steps=2,
        accumulation=2,
        clip=0.05,
        chunk=32,
        reads=(Read("evaluation", 0, -1), Read("evaluation", 1, 0)),
    ),
    # for engines that have the settings: a fused optimizer itself leaves the step out, after its gradients are clipped
    "overflow of a fused optimizer": Scenario(
        steps=3,
        dtype="fp16",
        clip=0.5,
        chunk=32,
        optimizer=Optimizer(name="adamw", lr=1e-2),
        loss_scale=LossScale(static=16.0),
        poison=((1, 0),),
        settings=("GradScaler", "optimizer(fused=True)"),
    ),
    # so does one whose scale falls with it, and whose schedule counts the steps that are not left out
    "scheduled overflow of a fused optimizer": Scenario(
        steps=4,
        dtype="fp16",
        clip=0.5,
        chunk=32,
        optimizer=Optimizer(name="adamw", lr=1e-2),
        lr_factors=(1.0, 0.5, 0.25, 0.125),
        scheduled_by="engine",
        loss_scale=LossScale(initial_power=4, hysteresis=1),
        poison=((1, 0),),
        settings=("optimizer(fused=True)",),
    ),
    # for engines that have the setting: several optimizers have one loss scale, which grows, and clip by one norm
    "one loss scale of several optimizers": Scenario(
        steps=5,
        dtype="fp16",
        clip=0.5,
        chunk=32,
        optimizer=Optimizer(name="adamw", lr=1e-2, second_group=True, third_group=True),
        loss_scale=LossScale(initial_power=4, window=2),
        settings=("an optimizer for each group",),
    ),
    # for engines that have the setting: parameters of two groups, whose order is not the model's, leave the device
    "states that leave and come back": Scenario(
        steps=3,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-2, second_group=True),
        settings=("offload_states",),
    ),
    # for engines that have the setting; the embeddings' gradients are a part of the norm
    "sparse gradients": Scenario(
        model=Gpt(width=8, layers=1, heads=2, context=4, vocab=16),
        steps=2,
        accumulation=2,
        clip=0.05,
        chunk=32,
        optimizer=Optimizer(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0),
        settings=("Embedding(sparse=True)",),
    ),
    # in two steps biases train alone, in the blocks and outside: no unit of an engine is frozen as a whole, and neither
    # is the head's group, but the first group, of the other matrices, is; after a step with one user of a block all
    # ranks use it, and each may have it whole since then
    "biases alone": Scenario(
        model=Odd(width=5, hidden=(7, 2), routed=True),
        world=3,
        steps=4,
        accumulation=2,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-2, weight_decay=0.1, second_group=True, third_group=True),
        frozen_steps=(1, 3),
        freezes_half=True,
        max_live=500_000_000,
    ),
    # blocks of one shape, in the order of their list or from the last to the first, by the micro-step; evaluations have
    # the order of the list
    "blocks in turned order": Scenario(
        model=Odd(width=5, hidden=(7, 7, 7), order="turned", routes="micro_steps"),
        world=3,
        steps=3,
        accumulation=2,
        chunk=32,
        prefetch_bucket=150,
        optimizer=Optimizer(lr=1e-2),
        reads=(Read("evaluation", 0, 1), Read("evaluation", 1, -1)),
    ),
    "image model": Scenario(
        model=Vit(width=16, layers=1, heads=2, image=8, patch=4), steps=2, accumulation=2, chunk=32
    ),
    # more units than a word has bits, whose names are in another order by letters than by number; their step counts
    # differ, and a checkpoint brings them back
    "more blocks than bits": Scenario(
        model=Odd(width=3, hidden=(1,) * 65, norm=False),
        steps=3,
        chunk=32,
        optimizer=Optimizer(name="adam", lr=1e-2),
        frozen_steps=(0,),
        resumes=(2,),
        loads_into="trained",
        prefetch_bucket=100,
    ),
    # between a forward and its backward another forward, without gradients, gathers and frees what that has saved; an
    # evaluation between micro-steps meets buffers that no state dict has, and that differ between the ranks
    "metric before the backward": Scenario(
        model=Odd(
            width=5,
            hidden=(7, 2),
            tied=True,
            functional=True,
            buffers=True,
            persistent=False,
            recompute="non_reentrant",
        ),
        steps=2,
        accumulation=2,
        chunk=32,
        prefetch_bucket=60,
        forwards="metric",
        optimizer=Optimizer(lr=1e-2),
        reads=(Read("evaluation", 1, 1),),
    ),
}
