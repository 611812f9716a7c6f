"""The settings that an engine has beside a Scenario's fields: which are chosen, and what they show."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zerobench import subjects
from zerobench.errors import Disagreement
from zerobench.model_specs import Gpt, Odd
from zerobench.ranks import Pool
from zerobench.scenario import LossScale, Optimizer, Scenario
from zerobench.subjects import client_settings, deepspeed_config, fsdp2_settings
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.support import tally
from zerobench.suites.support.own_settings import FIRST, set_up
from zerobench.suites.support.trials import Trials

#: With several micro-steps, a clipped norm and a load, so that most settings apply.
_SCENARIO = Scenario(
    model=Odd(width=4, hidden=(4,), norm=False, activation="relu"),
    steps=2,
    accumulation=2,
    clip=0.05,
    resumes=(1,),
    schedule="boundary",
    loss_scale=LossScale(static=1.0),
    optimizer=Optimizer(name="adam", lr=0.1),
)
_PLAIN_SGD = Optimizer(name="sgd", lr=0.5, momentum=0.0, weight_decay=0.0)
#: A setting and what it needs beside that.
_NEEDS: dict[str, dict[str, Any]] = {
    "powerSGD_hook with error feedback": {"dtype": "fp16", "poison": ((0, 0),)},
    "skip_all_reduce_unused_params": {"model": Odd(unused=True)},
    "GradScaler.step without unscale_": {"dtype": "fp16", "clip": 0.0},
    "bf16.immediate_grad_update": {"dtype": "bf16"},
    "bf16.check_grad_overflow=false": {"dtype": "bf16"},
    "zero_hpz_partition_size": {"world": 4},
    "stage3_module_granularity_threshold": {"model": Odd(width=8, hidden=(2, 2))},
    "compute_grad_norm=false": {"clip": 0.0, "short_steps": ((1, 1),)},
    "set_train_batch_size": {"clip": 0.0, "short_steps": ((1, 1),)},
    "PeriodicModelAverager of ranks alone": {"optimizer": _PLAIN_SGD, "clip": 0.0, "data": "dyadic"},
    "Embedding(sparse=True)": {"model": Gpt(width=8, layers=1, heads=2), "optimizer": _PLAIN_SGD, "clip": 0.0},
    "safe_update_full_grad_vectorized": {"gradient_edits": (0,)},
    "fp16_compress_wrapper(allreduce_hook)": {"dtype": "fp16"},
    "an optimizer for each group": {"optimizer": Optimizer(second_group=True)},
    "add_param_group": {"optimizer": Optimizer(second_group=True)},
    "ignored_params": {"model": Odd(frozen=True)},
    "a parameter group of frozen parameters": {"model": Odd(frozen=True)},
    "ignored_states": {"model": Odd(frozen=True)},
    "register_comm_hook(compress)": {"communication_dtype": "fp16"},
    "Tensor.register_post_accumulate_grad_hook": {"accumulation": 1},
    "checkpoint within a block": {"model": Odd(recompute="non_reentrant")},
    "deepspeed.checkpointing.checkpoint": {"model": Odd(recompute="reentrant")},
    "split_batches and adjust_scheduler=False": {"lr_factors": (1.0, 0.5), "scheduled_by": "engine"},
}


@pytest.mark.parametrize(
    "name",
    ["deepspeed", "torch-ddp", "torch-zero1", "torch-fsdp1", "torch-fsdp2", "accelerate-ddp", "accelerate-fsdp2"],
)
def test_everything_is_chosen(name: str) -> None:
    """Every setting, every way to save and every type of norm that a subject declares, at one of its stages."""
    if (package := name.partition("-")[0]) in ("deepspeed", "accelerate") and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    subject = subjects.load(name)
    needed = [needs for setting, needs in _NEEDS.items() if setting in subject.settings]
    scenarios = [_SCENARIO.but(stage=stage, **needs) for stage in range(4) for needs in ({}, *needed)]
    offered = [each for each in dict.fromkeys(scenarios) if subject.not_offered(each) is None]
    chosen = [set_up(subject, each.but(seed=seed)) for each in offered for seed in range(200)]
    assert {setting for each in chosen for setting in each.settings} == set(subject.settings)
    assert {each.saving for each in chosen} == {"", *subject.savings}
    assert {each.norm_type for each in chosen} == set(subject.norm_types)
    assert {subject.not_offered(each) for each in chosen} == {None}


def test_no_output_dtype_under_autocast() -> None:
    """FSDP2 casts a block's output to fp32, so later operations of the forward are not those of autocast."""
    fsdp2, forward = subjects.load("torch-fsdp2"), _SCENARIO.but(stage=3, settings=("output_dtype",))
    assert fsdp2.not_offered(forward) is None
    assert "whose dtype autocast has chosen" in str(fsdp2.not_offered(forward.but(autocast=True)))


@pytest.mark.parametrize("model", [Gpt(width=8, layers=1, heads=2, tied=True), Odd(tied=True), Odd(listed_twice=True)])
@pytest.mark.parametrize(("name", "setting"), [("torch-fsdp1", "param_init_fn"), ("torch-fsdp2", "to_empty")])
def test_a_tied_weight_needs_memory(name: str, setting: str, model: Gpt | Odd) -> None:
    """On the meta device each of two modules has a parameter of its own, so that the client's model is not tied."""
    reason = subjects.load(name).not_offered(_SCENARIO.but(stage=3, model=model, settings=(setting,)))
    assert "no parameter at two places" in str(reason)


@pytest.mark.skipif(fsdp2_settings.UNUSED not in fsdp2_settings.SETTINGS, reason="torch 2.11 has not this method")
@pytest.mark.parametrize(("short", "offered"), [((), True), (((0, 1),), True), (((1, 1),), False)])
def test_zeros_of_a_block_that_rests_in_a_short_step(short: tuple[tuple[int, int], ...], offered: bool) -> None:
    """FSDP2 makes gradients of zeros, so some leaf of each step must use the block: of step 1 it is the second leaf."""
    model, settings = Odd(routed=True), (fsdp2_settings.UNUSED,)
    scenario = Scenario(model=model, world=1, stage=3, steps=2, accumulation=2, short_steps=short, settings=settings)
    scenario = scenario.but(seed=1)  # the first leaf of step 0
    assert (subjects.load("torch-fsdp2").not_offered(scenario) is None) == offered


def test_a_filled_bucket_is_small() -> None:
    """Where torch fills memory with NaN, a bucket of the default size would take gigabytes of each rank."""
    sizes = [
        deepspeed_config.config(Scenario(stage=2, settings=settings))["zero_optimization"]["reduce_bucket_size"]
        for settings in ((), (client_settings.FILLED,))
    ]
    assert sizes == [500_000_000, 10_000_000]


def test_a_small_seed_chooses_nothing() -> None:
    """A failure that needs no setting shrinks to a Scenario without one; so does an engine that has none."""
    reference, ddp = subjects.load("reference"), subjects.load("torch-ddp")
    assert all(set_up(ddp, each) == each for each in (_SCENARIO.but(seed=seed) for seed in range(FIRST)))
    assert all(set_up(reference, each) == each for each in (_SCENARIO.but(seed=seed) for seed in range(100)))


def test_a_failure_names_the_settings(pool: Pool) -> None:
    """A draw that runs with settings counts as one, and its failure has them: without them it may not fail."""
    trials, draws = Trials(pool, "torch-ddp"), (_SCENARIO.but(seed=seed) for seed in range(FIRST, FIRST + 50))
    for drawn in draws:
        tally.current = tally.Tally()
        tally.current.begin(drawn)
        ran = trials.nearest(drawn)
        tally.current.failed()
        assert tally.current.failing == ran
        if ran.settings:
            return
    pytest.fail("no draw has settings")


def test_a_setting_that_a_subject_does_not_have() -> None:
    """It is not offered; the reason names those that there are."""
    reason = subjects.load("torch-zero1").not_offered(_SCENARIO.but(stage=1, settings=("bucket",), resumes=()))
    assert reason is not None
    assert reason.startswith("torch-zero1 has no setting 'bucket'; it has ")
    assert " bucket_cap_mb, " in reason


class WrongWithASetting(TorchDdp):
    """With one of its settings, it halves a gradient."""

    name = "wrong-with-a-setting"
    settings = ("right", "wrong")
    savings = ()
    norm_types = ("2",)

    def micro_step(self, batch: Any) -> Tensor:
        loss = super().micro_step(batch)
        if "wrong" in self.scenario.settings and self.micro_steps == self.scenario.accumulation:
            next(p.grad for p in self.working.values() if p.grad is not None).mul_(0.5)
        return loss


class ClipsByTheUsualNorm(TorchDdp):
    """It takes the 2-norm, whatever type it is asked for."""

    name = "clips-by-the-usual-norm"
    settings = ()

    def _clip(self) -> Tensor | None:
        return torch.nn.utils.clip_grad_norm_(self.masters.values(), self.scenario.clip) if self.scenario.clip else None


class ForgetsWhatItSaves(TorchDdp):
    """One of its ways to save leaves the optimizer's states out."""

    name = "forgets-what-it-saves"
    settings = ()
    norm_types = ("2",)
    savings = ("in part",)

    def load(self, directory: Path) -> None:
        before = self.optimizer.state_dict()
        super().load(directory)
        if self.scenario.saving == "in part":
            self.optimizer.load_state_dict(before)


@pytest.mark.parametrize("subject", [WrongWithASetting, ClipsByTheUsualNorm, ForgetsWhatItSaves])
def test_an_engine_that_is_wrong_with_a_setting(pool: Pool, subject: type[TorchDdp]) -> None:
    """It is right without, and a draw shows it with."""
    made = Trials.of(pool, subject)
    made.follows(made.nearest(_SCENARIO))
    with pytest.raises(Disagreement):
        _follows_with_settings(made)


def _follows_with_settings(made: Trials) -> None:
    for seed in range(FIRST, FIRST + 20):
        made.follows(made.nearest(_SCENARIO.but(seed=seed)))


@pytest.mark.parametrize("name", ["torch-fsdp1", "torch-fsdp2"])
def test_a_broadcast_in_a_part_of_the_pool(pool: Pool, name: str) -> None:
    """torch.distributed.checkpoint sends it over all processes, so that it runs in a world of its own."""
    made = Trials(pool, name)
    made.follows(_SCENARIO.but(stage=2, world=1, saving="broadcast_from_rank0"))
    made.close()
