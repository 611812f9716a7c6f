"""The numbers in the tables of docs/notes/benchmarks.md are those of the published reports and the closed forms."""

from __future__ import annotations

import json
from collections.abc import Iterator

from zerobench.bench.plan import STAGES_OF_ZERO, plan_cases
from zerobench.results import Json
from zerobench.results.identity import COMPUTE_ONLY
from zerobench.scenario import Scenario
from zerobench.subjects import load
from zerobench.suites.bench import capacity, grid
from zerobench.suites.bench.collectives import COLLECTIVES
from zerobench.suites.project.docs.pages import read
from zerobench.suites.project.docs.published import read_published
from zerobench.suites.project.reports.page import markdown_tables, received
from zerobench.theory import memory, offload, traffic
from zerobench.workload import models
from zerobench.workload.sizes import SIZES

_STATES = ("parameters", "gradients", "optimizer")
_BASE = Scenario(model=SIZES["vit-1b"], world=8, dtype="bf16", micro_batch=4, data="random", device="cuda")
_STEP = 2


def lines() -> Iterator[list[str]]:
    """Of each stage and offload setting: GB on the device, of parameters whole at once, elsewhere, and moved."""
    for case in plan_cases(_BASE, ["reference"], STAGES_OF_ZERO, ("none", "cpu", "nvme"))[:-1]:
        scenario, model = case.scenario, models.shapes(case.scenario)
        held = memory.predicted(scenario, model)
        ledger = traffic.predicted(scenario, model, step=_STEP)
        off = offload.predicted(scenario, model, _STEP)
        values = [
            *(held[name] for name in ("parameters", "gradients", "optimizer")),
            sum(held.values()),
            memory.parameter_peak(scenario, model, step=_STEP),
            sum(off.host.values()),
            sum(off.files.values()),
            sum(each.sent for each in ledger.values()),
            sum(off.moved.get(name, 0) for name in ("to_host", "to_device")),
            sum(off.moved.get(name, 0) for name in ("file_read", "file_written")),
        ]
        yield [str(scenario.stage), scenario.optimizer_at, *(f"{value / 1e9:.2f}" for value in values)]


def _shown(title: str) -> list[list[str]]:
    """The lines of the table under a title of the page."""
    [_, _, *shown] = markdown_tables(read("docs/notes/benchmarks.md"))[title]
    return shown


def _target(setting: str | None) -> str:
    """The optimizer's target in an offload setting."""
    return (setting or "optimizer none").split(",")[0].removeprefix("optimizer ")


def of_collectives() -> list[list[str]]:
    """Of sizes 16 times apart, in MiB, on 2 and 4 ranks: milliseconds of each, and the speed-up of the engine's."""
    measured = read_published("cpu-collectives")["collectives"]
    found = {(each["world"], each["bytes"], each["collective"]): each for each in measured}
    lines = []
    for world in (2, 4):
        for size in (1 << 18, 1 << 22, 1 << 26):
            took = {name: found[world, size, name]["seconds"] * 1e3 for name in COLLECTIVES}
            times = took["reduce_scatter"] / took["fold_reduce_scatter"]
            lines.append([str(world), f"{size / 2**20:g}", *(f"{each:.2f}" for each in took.values()), f"{times:.2f}"])
    return lines


def test_collectives() -> None:
    """Every number is the published report's."""
    assert _shown("Collectives, measured") == of_collectives()


def of_scaling() -> list[list[str]]:
    """Of each subject and stage: multiples of compute-only on 1, 2 and 4 ranks, and wire / received on 2 and 4."""
    found: dict[tuple[str, int], dict[int, Json]] = {}
    for case in read_published("cpu-scaling")["cases"]:
        if case["subject"] != COMPUTE_ONLY:
            world = Scenario.from_json(json.dumps(case["scenario"])).world
            found.setdefault((case["subject"], case["stage"]), {})[world] = case
    lines = []
    for (subject, stage), by_world in found.items():
        ratios = [f"{by_world[world]['time']['ratio']:.2f}" for world in (1, 2, 4)]
        lines.append([subject, str(stage), *ratios, *(_wire(by_world[world]["traffic"]) for world in (2, 4))])
    return lines


def _wire(moved: Json) -> str:
    return f"{moved['wire'] / received(moved):.2f}"


def test_scaling() -> None:
    """Every number is the published report's."""
    assert _shown("Scaling, measured") == of_scaling()


def test_predicted_table() -> None:
    """Every number is the closed forms'."""
    assert _shown("A vision transformer of a billion parameters, predicted") == list(lines())


def of_vit() -> list[list[str]]:
    """Of each case: MB on the fullest rank, and the multiple of compute-only."""
    found = []
    for case in read_published("cpu-vit")["cases"]:
        if case["subject"] == COMPUTE_ONLY:
            continue
        ranks = case["memory"]["measured"]
        held = max(sum(rank[name] for name in _STATES) for rank in ranks)
        off = [max(rank[name] or 0 for rank in ranks) for name in ("host", "file")]
        megabytes = [f"{value / 1e6:.1f}" for value in (held, *off)]
        peak = f"{max(rank['peak'] for rank in ranks) / 1e6:,.0f}"
        target = _target((case["offload"] or {}).get("setting"))
        ratio = f"{case['time']['ratio']:.2f}"
        found.append([case["subject"], str(case["stage"]), target, *megabytes, peak, ratio])
    return found


def test_measured_table() -> None:
    """Every number is the published report's."""
    assert sorted(_shown("A vision transformer of 22 million parameters, measured")) == sorted(of_vit())


def of_large_vit() -> list[list[str]]:
    """Of each case on the GPU: GB on the device and on the host, the peak, ms, and the multiple of compute-only."""
    found = []
    for case in read_published("h200/vit-1b")["cases"]:
        if case["subject"] == COMPUTE_ONLY:
            continue
        assert case["memory"]["measured"][0]["parameters"] == case["memory"]["predicted"][0]["parameters"]
        [rank] = case["memory"]["measured"]
        bytes_ = sum(rank[name] for name in _STATES), rank["host"] or 0, rank["peak"]
        target = _target((case["offload"] or {}).get("setting"))
        times = f"{case['time']['median'] * 1e3:.0f}", f"{case['time']['ratio']:.2f}"
        found.append([str(case["stage"]), target, *(f"{value / 1e9:.2f}" for value in bytes_), *times])
    return found


def test_large_vit_on_a_gpu() -> None:
    """Every number is the published report's."""
    assert _shown("A vision transformer of a billion parameters on one H200, measured") == of_large_vit()


def of_gpt2(report: str = "h200/gpt2") -> list[list[str]]:
    """Of each subject on the GPU: ms of a step, ms of one of four in one fence, and the multiple of compute-only."""
    found = []
    for case in read_published(report)["cases"]:
        time = case["time"]
        times = f"{time['median'] * 1e3:.1f}", f"{time['run_ahead'] * 1e3:.1f}", f"{time['ratio']:.2f}"
        found.append([case["subject"], "-" if case["stage"] is None else str(case["stage"]), *times])
    return found


def test_gpt2_on_a_gpu() -> None:
    """Every number is the published report's."""
    assert _shown("GPT-2 on one H200, measured") == of_gpt2()
    assert _shown("DeepSpeed on one H200, measured") == of_gpt2("h200/gpt2-deepspeed")


def test_readme_on_a_gpu() -> None:
    """Its numbers are the published report's."""
    ratios = {(subject, stage): ratio for subject, stage, *_, ratio in of_gpt2()}
    lower = sorted(ratios["reference", stage] for stage in ("0", "1", "2"))
    text = " ".join(read("README.md").split())
    assert f"{lower[0]} to {lower[-1]} times as long" in text
    assert f"{ratios['reference', '3']} times at stage 3" in text
    assert f"torch DDP takes {ratios['torch-ddp', '0']}, FSDP2 {ratios['torch-fsdp2', '3']}." in text


def of_gpu_capacity() -> list[list[str]]:
    """Of each search on the GPU: the largest model, its ratio to stage 0 within the same limit, and ms of a step."""
    found, first = [], 0
    for fit in read_published("h200/capacity")["fits"]:
        first = first if fit["offload"] else fit["parameters"]
        numbers = f"{fit['parameters'] / 1e6:,.1f}", f"{fit['parameters'] / first:.2f}", f"{fit['seconds'] * 1e3:,.0f}"
        setting = str(fit["stage"]), _target(fit["offload"]), str(fit["limit"] >> 30)
        found.append([*setting, str(fit["layers"]), *numbers])
    return found


def test_largest_model_on_a_gpu() -> None:
    """Every number is the published report's."""
    assert _shown("The largest model on one H200, measured") == of_gpu_capacity()


def of_capacity() -> list[list[str]]:
    """Of each search: the largest model, its ratio to the first, and the closed forms' limit for the states alone."""
    fits = read_published("cpu-capacity")["fits"]
    asked = {_asked(each): each.case.scenario for each in grid.searches(False, "cpu", 2)}
    found = []
    for fit in (each for each in fits if each["verdict"] == "measured"):
        key = fit["subject"], str(fit["stage"]), _target(fit["offload"])
        numbers = [f"{fit['parameters'] / 1e6:.1f}", f"{fit['parameters'] / fits[0]['parameters']:.2f}"]
        scenario = capacity.with_layers(asked[key], fit["layers"])
        found.append([*key, *numbers, _states_alone(scenario, fit)])
    return found


def test_table_of_the_largest_models() -> None:
    """Every number is the published report's."""
    assert sorted(_shown("The largest model within a limit of memory, measured")) == sorted(of_capacity())


def _asked(search: grid.Search) -> tuple[str, str, str]:
    return search.case.subject, str(search.case.scenario.stage), search.case.scenario.optimizer_at


def _states_alone(scenario: Scenario, fit: Json) -> str:
    """Million parameters in the limit at the states' bytes each, or the model's own 4; empty if no form is known."""
    theory = load(fit["subject"]).theory()
    held = None if theory is None else theory.memory(scenario, models.shapes(scenario))
    if held is None:
        return ""
    each = max(4, sum(held[name] for name in _STATES) / fit["parameters"])
    return f"{fit['limit'] / each / 1e6:.1f}"
