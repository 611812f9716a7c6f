"""The Scenario that an engine offers nearest to a drawn one."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import Any, Literal

import pytest

from zerobench import findings
from zerobench.findings import KnownFinding
from zerobench.model_specs import Odd
from zerobench.scenario import LossScale, Optimizer, Read, Scenario
from zerobench.subjects.deepspeed import DeepSpeed
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.subjects.torch_fsdp2 import TorchFsdp2
from zerobench.suites.support.offered import nearest, nearest_unknown


class _OnTwoReplicas(TorchDdp):
    """Names its reasons one after another, as engines do; the first one is reached by a change of another field."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.accumulation > 1 and scenario.communication_dtype is not None:
            return "adds micro-steps in fp32"
        if scenario.replicate != 2:
            return "has two replicas"
        if scenario.world % 2:
            return "needs an even number of ranks"
        return "has no second group" if scenario.optimizer.second_group else None


@pytest.mark.parametrize("second_group", [False, True])
def test_a_field_that_was_not_in_the_way_keeps_its_value(second_group: bool) -> None:
    """The number of replicas, the ranks and the group change; the wire and the micro-steps do not."""
    drawn = Scenario(world=1, accumulation=2, optimizer=Optimizer(second_group=second_group))
    found = nearest(_OnTwoReplicas, drawn, ["stage"])
    assert found == drawn.but(world=2, replicate=2, optimizer=Optimizer())


def test_a_fixed_field_keeps_its_value() -> None:
    """If the engine refuses every other change, the reason is the result."""
    assert nearest(_OnTwoReplicas, Scenario(world=3), ["world"]) == "needs an even number of ranks"


def test_a_reason_leads_to_no_offload() -> None:
    """Of two reasons the first is removed by a plain value, and not hidden behind an offload that nobody drew."""
    drawn = Scenario(stage=3, accumulator_dtype="fp16", poison=((0, 0),), loss_scale=LossScale(static=1.0))
    found = nearest(TorchFsdp2, drawn, ["stage"])
    assert not isinstance(found, str), found
    assert (found.stage, found.offload_param) == (3, "none")


class _OfAdamInHostMemory(TorchDdp):
    """One reason has two causes; a change of another field brings a reason of its own."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.replicate > 1:
            return "has no hybrid sharding"
        in_host_memory = scenario.optimizer_at == "cpu"
        return None if in_host_memory and scenario.optimizer.name == "adamw" else "is Adam in host memory"


@pytest.mark.parametrize("place", ["none", "nvme"])
def test_a_reason_of_two_causes_is_removed(place: Literal["none", "nvme"]) -> None:
    """The search leaves a change that leads nowhere, and changes both fields."""
    drawn = Scenario(world=4, stage=2, optimizer=Optimizer("sgd"), offload_optimizer=place)
    expected = drawn.but(offload_optimizer="cpu", optimizer=Optimizer("adamw"))
    assert nearest(_OfAdamInHostMemory, drawn, ["stage"]) == expected


class _OfStaticScales(TorchDdp):
    """Names another reason first; a change of that field reaches it without a need."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.replicate > 1:
            return "has no hybrid sharding"
        if scenario.offload_optimizer != "none":
            return "keeps all states on the device"
        return None if scenario.loss_scale.static else "has no dynamic loss scale"


def test_the_reason_is_the_one_that_no_change_removes() -> None:
    """If a fixed field is in the way, the reason is neither that of another drawn value nor that of a change."""
    drawn = Scenario(dtype="fp16", offload_optimizer="nvme", stage=1)
    assert nearest(_OfStaticScales, drawn, ["loss_scale", "dtype"]) == "has no dynamic loss scale"


_AWKWARD = KnownFinding(
    slug="awkward",
    distribution="torch",
    versions=">=1",
    subjects=("static",),
    kind="raised",
    explanation="",
    upstream="",
    where=[{"model.scalar": [True]}, {"model.empty": [True]}, {"dtype": ["fp16"]}],
    scenario=None,
)


class _Static(_OfStaticScales):
    name = "static"


def test_all_alternatives_of_a_finding_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them are removed one after another; no change leads to what the engine refuses, or to another one."""
    monkeypatch.setattr(findings, "everything", lambda: [_AWKWARD])
    drawn = Scenario(model=Odd(scalar=True, empty=True, tiny=True), loss_scale=LossScale(static=1.0))
    assert nearest_unknown(_Static, drawn, ["stage"]) == drawn.but(model=Odd(tiny=True))
    assert nearest_unknown(_Static, drawn, ["stage", "empty"]) is None


_OF_WHOLE_LOADS = dataclasses.replace(_AWKWARD, where=[{"loads": ["all"]}])


@pytest.mark.parametrize("changes", [{"loads": "model"}, {"model": Odd(persistent=False)}])
def test_a_part_of_a_state_goes_into_a_new_engine(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No change leads past a finding to a load whose result depends on what an engine had before it."""
    monkeypatch.setattr(findings, "everything", lambda: [_OF_WHOLE_LOADS])
    drawn = Scenario(resumes=(1,), loads_into="trained", loss_scale=LossScale(static=1.0))
    assert nearest_unknown(_Static, drawn, ["stage", "resumes", "loads_into"]) is None
    assert TorchDdp.not_offered(drawn.but(loads_into="new", **changes)) is None
    assert "new engine" in str(TorchDdp.not_offered(drawn.but(**changes)))


def test_what_the_engine_offers_is_left_alone() -> None:
    """No field changes, in the model and the readings either."""
    drawn = Scenario(model=Odd(reused=True), world=4, replicate=2, reads=(Read(at=1),))
    assert nearest(_OnTwoReplicas, drawn, []) == drawn


class _SkipsInFp16(TorchDdp):
    """Checks for overflow in fp16 alone, as torch's gradient scaler does."""

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        return "skips in fp16 alone" if scenario.poison and scenario.dtype != "fp16" else None


def test_autocast_stays_in_fp32() -> None:
    """If the dtype changes to 16 bits, the forwards are no longer under autocast, which is of fp32 parameters."""
    drawn = Scenario(autocast=True, poison=((1, 0),), loss_scale=LossScale(static=1.0))
    assert nearest(_SkipsInFp16, drawn, ["poison"]) == drawn.but(dtype="fp16", autocast=False)


def test_a_dynamic_loss_scale_becomes_torchs() -> None:
    """An engine that a client drives with torch's GradScaler keeps a dynamic scale, with its window."""
    drawn = Scenario(dtype="fp16", loss_scale=LossScale(window=2, hysteresis=2))
    assert nearest(TorchDdp, drawn, []) == drawn.but(loss_scale=LossScale(scaler="torch", window=2, hysteresis=2))


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(
    ("stage", "scale", "bad", "ends"),
    [
        (2, LossScale(initial_power=3, minimum=8.0, hysteresis=1), (0,), True),
        (2, LossScale(initial_power=3, minimum=8.0, hysteresis=2), (0,), False),
        (2, LossScale(initial_power=3, minimum=8.0, hysteresis=2), (0, 2), True),
        (2, LossScale(initial_power=3, minimum=4.0, hysteresis=1), (0,), False),
        (2, LossScale(initial_power=3, minimum=4.0, hysteresis=1), (0, 1), True),
        (2, LossScale(static=8.0, minimum=8.0, hysteresis=1), (0,), False),
        (0, LossScale(initial_power=3, minimum=8.0, hysteresis=1), (0,), False),
    ],
)
def test_deepspeed_ends_at_the_least_scale(stage: int, scale: LossScale, bad: tuple[int, ...], ends: bool) -> None:
    """DeepSpeed raises if it cannot lower the loss scale any more, by design: such a Scenario is not offered."""
    poison = tuple((step, 0) for step in bad)
    drawn = Scenario(stage=stage, dtype="fp16", steps=3, loss_scale=scale, poison=poison)
    assert ("ends the run" in (DeepSpeed.not_offered(drawn) or "")) is ends
