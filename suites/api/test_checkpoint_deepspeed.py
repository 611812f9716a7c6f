"""Checkpoints between this engine and the installed DeepSpeed, with every bit of the training state, both ways."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from zerobench import export_deepspeed_checkpoint, subjects
from zerobench.driver import flat, model_for, run_step, start, to_cpu
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.oracles.optimizer import build_optimizer
from zerobench.ranks import Pool, RankFault
from zerobench.recording import State
from zerobench.scenario import LossScale, Odd, Optimizer, Scenario
from zerobench.subject import Subject
from zerobench.subjects.deepspeed import DeepSpeed, config
from zerobench.subjects.deepspeed_universal import convert_to_universal
from zerobench.suites.api.universal import convert

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("DeepSpeed is not installed; pip install 'zerobench[deepspeed]'", allow_module_level=True)

_LIMIT = 300.0
_MODEL = Odd(hidden=(7, 3, 5), frozen=True, tied=True, tiny=True, high=True, buffers=True)
#: Sizes such that a rank's part ends within a parameter, and a loss scale that changes.
_SCENARIO = Scenario(
    model=_MODEL,
    steps=3,
    loss_scale=LossScale(initial_power=4, window=1),
    sub_group=40,
)


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    """DeepSpeed's ranks: its group is always the whole world."""
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def three() -> Iterator[Pool]:
    """The reference engine's ranks."""
    with Pool(3) as pool:
        yield pool


def _states(subject: Subject, scenario: Scenario) -> State:
    """Everything that the subjects' calls can read of the training state: at stages 1 and 2 DeepSpeed cannot read the
    optimizer state of a second group (reports/findings/deepspeed/second-group-state)."""
    optimizer = not scenario.optimizer.second_group
    named = {"master": subject.parameters(), "model": subject.model_parameters()}
    found = {f"{what} {name}": value for what, state in named.items() for name, value in state.items()}
    return to_cpu(found | (flat(subject.optimizer_state()) if optimizer else {}))


def _train_and_save(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> State:
    """Train, save, and return the states."""
    with closing(start(subjects.load(name), scenario, group)) as subject:
        for index in range(scenario.steps):
            run_step(subject, scenario, index, dist.get_rank(group))
        subject.save(directory)
        return _states(subject, scenario)


def _load(
    group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path, steps: int = 0, save: Path | None = None
) -> tuple[State, Any]:
    """Load into an engine with other values, train, maybe save, and return the states and the counters."""
    kind = subjects.load(name)
    with closing(kind(model_for(kind, scenario.but(seed=1)), scenario, group)) as subject:
        subject.load(directory)
        for index in range(scenario.steps, scenario.steps + steps):
            run_step(subject, scenario, index, dist.get_rank(group))
        if save is not None:
            subject.save(save)
        engine: Any = subject.engine  # type: ignore[attr-defined]
        if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
            engine.optimizer._lazy_init_hp_params_optimizer_state()  # else DeepSpeed can read no state before a step
        return _states(subject, scenario), (engine.global_steps, engine.skipped_steps)


def _demand_equal(got: State, expected: State) -> None:
    assert got.keys() == expected.keys()
    differing = [name for name, value in expected.items() if not value.equal(got[name])]
    assert not differing, {name: (got[name], expected[name]) for name in differing[:2]}


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_import(two: Pool, three: Pool, stage: int, dtype: Any, second_group: bool, tmp_path: Path) -> None:
    """An engine of another stage and world size has the masters, parameters, optimizer states and counters."""
    scenario = _SCENARIO.but(stage=stage, dtype=dtype, optimizer=Optimizer(second_group=second_group))
    expected = two.run(_train_and_save, "deepspeed", scenario, tmp_path, timeout=_LIMIT)[0]
    for other, world in ((3, 3), (stage, 2), (1, 1)):
        changed = scenario.but(stage=other, world=world)
        for got, counters in three.run(_load, "reference", changed, tmp_path, world=world, timeout=_LIMIT):
            _demand_equal(got, expected)
            assert counters == (3, 0)


class RoundRobin(DeepSpeed):
    """DeepSpeed that orders the parameters of a flat group so that their gradients are reduced in turn."""

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        return {**config, "zero_optimization": {**config["zero_optimization"], "round_robin_gradients": True}}


@pytest.mark.parametrize("stage", [1, 2])
def test_import_of_round_robin(two: Pool, three: Pool, stage: int, tmp_path: Path) -> None:
    """So it has if DeepSpeed orders its flat groups in another way; the universal form mixes the parameters up
    (reports/findings/deepspeed/round-robin-order), as DeepSpeed's reading of masters does, and is refused."""
    scenario = _SCENARIO.but(dtype="bf16", stage=stage, optimizer=Optimizer(second_group=True))
    saved = two.run(_train_and_save, f"{__name__}:{RoundRobin.__name__}", scenario, tmp_path, timeout=_LIMIT)[0]
    expected = {name: value for name, value in saved.items() if name.startswith("model")}
    for got, counters in three.run(_load, "reference", scenario.but(world=3), tmp_path, timeout=_LIMIT):
        _demand_equal({name: value for name, value in got.items() if name in expected}, expected)
        masters = [name for name in got if name.startswith("master")]
        assert all(got[name].bfloat16().equal(expected[name.replace("master", "model")]) for name in masters)
        assert counters == (3, 0)
    two.run(_to_universal, tmp_path, world=1, timeout=_LIMIT)
    (tmp_path / "latest").unlink()
    with pytest.raises(RankFault, match="conversion gives parameters the states of others"):
        three.run(_load, "reference", scenario, tmp_path, world=2, timeout=_LIMIT)


class Fused(DeepSpeed):
    """DeepSpeed that takes torch's Adam for its fused one: at stage 0 it then keeps a flat tensor for each group."""

    def __init__(self, model: torch.nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        fused = mock.patch("deepspeed.runtime.engine.FusedAdam", torch.optim.AdamW)  # its own must be compiled
        given = mock.patch(
            "zerobench.subjects.deepspeed._client", lambda spec, named: build_optimizer(spec.optimizer, named)
        )
        with fused, given:
            super().__init__(model, scenario, group)

    def _config(self) -> dict[str, Any]:
        return {key: value for key, value in super()._config().items() if key != "optimizer"}

    def _masters(self) -> dict[torch.Tensor, torch.Tensor]:
        flat = zip(self.optimizer.fp16_groups, self.optimizer.fp32_groups_flat, strict=True)
        return {each: part for whole, master in flat for each, part in zip(whole, _unflat(master, whole), strict=True)}

    def _states(self, key: str) -> State:
        pairs = zip(self.optimizer.fp16_groups, self.optimizer.optimizer.state.values(), strict=True)
        kept = {
            each: part for whole, state in pairs for each, part in zip(whole, _unflat(state[key], whole), strict=True)
        }
        return {name: kept[each] for name, each in self.trained.items()}


def _unflat(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    parts = torch.split(flat.detach(), [each.numel() for each in like])
    return (part.view(each.shape) for part, each in zip(parts, like, strict=True))


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("power", [4, None])
def test_import_of_the_fused_layout(
    two: Pool, three: Pool, power: int | None, second_group: bool, tmp_path: Path
) -> None:
    """So it has if DeepSpeed's stage 0 keeps one flat tensor for each group, with a dynamic and a static loss scale."""
    scale = LossScale(static=8.0) if power is None else LossScale(initial_power=power, window=1)
    scenario = _SCENARIO.but(stage=0, dtype="fp16", loss_scale=scale, optimizer=Optimizer(second_group=second_group))
    expected = two.run(_train_and_save, f"{__name__}:{Fused.__name__}", scenario, tmp_path, timeout=_LIMIT)[0]
    for other, world in ((3, 3), (0, 2), (1, 1)):
        changed = scenario.but(stage=other, world=world)
        for got, counters in three.run(_load, "reference", changed, tmp_path, world=world, timeout=_LIMIT):
            _demand_equal({name: got[name] for name in expected}, expected)
            assert counters == (3, 0)


@pytest.mark.parametrize(("stage", "universal"), [(0, False), (1, False), (2, False), (3, False), (1, True), (2, True)])
def test_import_before_the_first_update(two: Pool, three: Pool, stage: int, universal: bool, tmp_path: Path) -> None:
    """So it has after a skipped step alone, when DeepSpeed's optimizer has no states yet."""
    scenario = _SCENARIO.but(stage=stage, dtype="fp16", steps=1, poison=((0, 0),))
    expected = two.run(_train_and_save, "deepspeed", scenario, tmp_path, timeout=_LIMIT)[0]
    if universal:
        two.run(_to_universal, tmp_path, world=1, timeout=_LIMIT)
        (tmp_path / "latest").unlink()
    for got, counters in three.run(_load, "reference", scenario.but(world=3), tmp_path, timeout=_LIMIT):
        _demand_equal(got, expected)
        assert counters == (1, 1)


@pytest.mark.parametrize("universal", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_import_of_offloaded_states(two: Pool, three: Pool, stage: int, universal: bool, tmp_path: Path) -> None:
    """So it has if DeepSpeed keeps masters, optimizer states and at stage 3 parameters in host memory."""
    offload: dict[str, Any] = {"offload_optimizer": "cpu", "offload_param": "cpu"}
    scenario = _SCENARIO.but(dtype="bf16", stage=stage, optimizer=Optimizer(second_group=True), **offload)
    expected = two.run(_train_and_save, "deepspeed", scenario, tmp_path, timeout=_LIMIT)[0]
    if universal:
        two.run(_to_universal, tmp_path, world=1, timeout=_LIMIT)
        (tmp_path / "latest").unlink()
    for got, counters in three.run(_load, "reference", scenario.but(world=3), tmp_path, timeout=_LIMIT):
        _demand_equal(got, expected)
        assert counters == (3, 0)


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_export(two: Pool, three: Pool, stage: int, dtype: Any, second_group: bool, tmp_path: Path) -> None:
    """DeepSpeed has the masters, parameters, optimizer states and counters of an engine of another stage and world
    size."""
    scenario = _SCENARIO.but(dtype=dtype, optimizer=Optimizer(second_group=second_group))
    saved, exported = tmp_path / "saved", tmp_path / "exported"
    other = scenario.but(stage=(stage + 2) % 4, world=3)
    expected = three.run(_train_and_save, "reference", other, saved, timeout=_LIMIT)[0]
    wanted = scenario.but(stage=stage)
    export_deepspeed_checkpoint(saved, exported, config(wanted), world=2)
    for got, counters in two.run(_load, "deepspeed", wanted, exported, timeout=_LIMIT):
        _demand_equal(got, expected)
        assert counters == (3, 0)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_there_and_back(two: Pool, three: Pool, stage: int, dtype: Any, tmp_path: Path) -> None:
    """DeepSpeed goes on from its own checkpoint, which this engine has loaded, saved and exported, as if it had never
    stopped: the groups' states, the step counts and the loss scale have come through. Below stage 3 DeepSpeed saves
    the buffers of rank 0 alone, so the model has none."""
    model = dataclasses.replace(_MODEL, buffers=False)
    scenario = _SCENARIO.but(model=model, stage=stage, dtype=dtype, optimizer=Optimizer(second_group=True))
    first, ours, back = (tmp_path / name for name in ("first", "ours", "back"))
    whole = two.run(_train_and_save, "deepspeed", scenario.but(steps=5), tmp_path / "whole", timeout=_LIMIT)
    two.run(_train_and_save, "deepspeed", scenario, first, timeout=_LIMIT)
    three.run(_load, "reference", scenario.but(stage=3 - stage, world=3), first, 0, ours, timeout=_LIMIT)
    export_deepspeed_checkpoint(ours, back, config(scenario), world=2)
    for got, expected in zip(two.run(_load, "deepspeed", scenario, back, 2, timeout=_LIMIT), whole, strict=True):
        _demand_equal(got[0], expected)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_another_number_of_ranks(two: Pool, three: Pool, stage: int, tmp_path: Path) -> None:
    """DeepSpeed refuses its own checkpoint on another number of ranks, and takes it by way of this engine."""
    scenario = _SCENARIO.but(model=dataclasses.replace(_MODEL, buffers=False), stage=stage, dtype="bf16")
    first, ours, back = (tmp_path / name for name in ("first", "ours", "back"))
    expected = two.run(_train_and_save, "deepspeed", scenario, first, timeout=_LIMIT)[0]
    more = scenario.but(world=3)
    refusal = "raised AssertionError" if stage == 3 else "used a DP world size of 2 but the current world size is 3"
    with pytest.raises(RankFault, match=refusal):  # at stage 3 rank 2 finds no file of its own
        three.run(_load, "deepspeed", more, first, timeout=_LIMIT)
    two.run(_load, "reference", scenario, first, 0, ours, timeout=_LIMIT)
    export_deepspeed_checkpoint(ours, back, config(more), world=3)
    for got, counters in three.run(_load, "deepspeed", more, back, timeout=_LIMIT):
        _demand_equal(got, expected)
        assert counters == (3, 0)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_universal(two: Pool, three: Pool, stage: int, tmp_path: Path) -> None:
    """A universal checkpoint keeps every state on the same and on another number of ranks, except frozen parameters
    and buffers (reports/findings/deepspeed/universal-frozen-and-buffers), which this model does not have; and so does
    the conversion of a checkpoint that this engine has exported."""
    model = dataclasses.replace(_MODEL, buffers=False, frozen=False)
    scenario = _SCENARIO.but(model=model, stage=stage, dtype="fp16")
    own, exported = tmp_path / "own", tmp_path / "exported"
    expected = two.run(_train_and_save, "deepspeed", scenario, own, timeout=_LIMIT)[0]
    two.run(_load, "reference", scenario, own, 0, tmp_path / "ours", timeout=_LIMIT)
    export_deepspeed_checkpoint(tmp_path / "ours", exported, config(scenario), world=2)
    for directory in (own, exported):
        two.run(_to_universal, directory, world=1, timeout=_LIMIT)
        for ranks in (two, three):
            for got, counters in ranks.run(
                _load, "deepspeed-universal", scenario.but(world=ranks.world), directory, timeout=_LIMIT
            ):
                _demand_equal(got, expected)
                assert counters == (3, 0)


def _to_universal(group: dist.ProcessGroup, directory: Path) -> None:
    convert_to_universal(directory)


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_import_of_universal(
    two: Pool, three: Pool, stage: int, dtype: Any, second_group: bool, tmp_path: Path
) -> None:
    """An engine of another stage and world size has every state of a universal checkpoint, frozen parameters and
    buffers among them; and the converter of the tests without DeepSpeed writes the same files."""
    scenario = _SCENARIO.but(stage=stage, dtype=dtype, optimizer=Optimizer(second_group=second_group))
    expected = two.run(_train_and_save, "deepspeed", scenario, tmp_path, timeout=_LIMIT)[0]
    two.run(_to_universal, tmp_path, world=1, timeout=_LIMIT)
    (tmp_path / "latest").unlink()
    for other, world in ((3, 3), (stage, 2), (0, 1)):
        changed = scenario.but(stage=other, world=world)
        for got, counters in three.run(_load, "reference", changed, tmp_path, world=world, timeout=_LIMIT):
            _demand_equal(got, expected)
            assert counters == (3, 0)
    convert(tmp_path / "global_step3", tmp_path / "of_the_tests")
    _demand_same_files(tmp_path / "of_the_tests", tmp_path / "global_step3_universal")


def _demand_same_files(got: Path, expected: Path) -> None:
    """The same names, and equal content in plain types and tensors."""
    names = [sorted(str(path.relative_to(each)) for path in each.rglob("*.pt")) for each in (got, expected)]
    assert names[0] == names[1]
    for name in names[0]:
        assert _plain(pickles.read_any(got / name)) == _plain(pickles.read_any(expected / name)), name


def _plain(value: Any) -> Any:
    """A content that compares by value; padding may be NaN, so tensors compare by their bits."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.reshape(-1).contiguous().view(torch.uint8).tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return vars(value) if hasattr(value, "__dict__") else value
