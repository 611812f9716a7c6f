"""Results made up for the tests of reports: every verdict, every part, and text that wants to be markup."""

from __future__ import annotations

import json
import statistics

from zerobench.results import Json
from zerobench.results.identity import Case
from zerobench.scenario import Scenario

HOSTILE = "evil|*pkg*:<script>alert(1)</script>`x`"
REASON = "rank 1: ValueError: <b>no</b> | such\n```\n# a heading\n[link](http://example.org)"

_SIZE = 11_313_152
_PARAMETERS = 2_792_448


def results() -> Json:
    """A value of schema 3."""
    cases = [
        *(case("reference", stage) for stage in range(4)),
        case("reference", 3, bf16=True),
        offloaded(case("reference", 3), "cpu"),
        case("torch-fsdp2", 3, bf16=True, right=False),
        {**case("torch-ddp", 0), "verdict": "measured", "memory": None, "traffic": None, "judgement": None},
        bare("deepspeed", 2, "unsupported", "deepspeed is not installed"),
        bare("deepspeed", 1, "not measured", ""),
        bare(HOSTILE, 3, "raised", REASON),
        bare("torch-zero1", 1, "crashed", "rank 1 was killed by SIGKILL"),
        bare("torch-zero1", 2, "timeout", "no answer within 120 s"),
        compute_only(),
    ]
    return {
        "schema": 3,
        "case_version": 1,
        "zerobench": "0.1.0",
        "command": "zerobench run --data 'my `data`|<i>.txt'",
        "settings": {
            "model": "mini", "parameters": _PARAMETERS, "ranks": 2, "dtype": None, "accumulation": None,
            "micro_batch": 4, "context": 128, "clip": 0.0, "steps": 4, "warmup": 1, "device": "cpu", "seed": 0,
        },
        "text": {"source": "my `data`|<i>.txt", "bytes": 466_195, "sha256": "2a95" * 16},
        "budget": {"yardstick": "torch-ddp", "error": 2.85e-06, "times": 2.0, "step": 4},
        "peaks": [{"dtype": "fp32", "size": 512, "flops_per_second": 9.5e10}],
        "cases": [_named(each) for each in cases],
        "collectives": [collective("all_to_all", 1 << at) for at in (10, 20)],
        "kernels": [kernel("adamw", "torch", None), kernel("adamw", f"c++ {HOSTILE}", "torch")],
        "fits": [fit(0, None, 28_579_328), fit(3, "parameters nvme", 126_509_568), fit(3, HOSTILE, 0), unfit(2)],
        "environment": {
            "date": "2026-01-01T00:00:00+00:00", "python": "3.11.7", "torch": "2.13.0", "platform": "Linux",
            "cpu": "a <CPU> & more", "cores": 2, "threads": 1, "gpu": None, "git": {"commit": "c0ffee", "dirty": False},
        },
    }  # fmt: skip


def gpu(heat: str) -> Json:
    """What an environment says of two GPUs; all but names, driver and versions is of the moment."""
    state = {"clocks.sm": ["1980 MHz", "1980 MHz"], "temperature.gpu": [heat, heat], "power.draw": ["70.1 W", "71.2 W"]}
    return {
        "names": ["NVIDIA H100", "NVIDIA H100"], "driver": "570.1", "cuda": "12.8", "nccl": "2.27.5", "state": state,
        "throttling": ["0x1", "0x1"], "other_processes": int(heat) % 2,
    }  # fmt: skip


def many(count: int) -> Json:
    """Results of ``count`` cases: subjects at stages, in several precisions, worlds and accumulations."""
    value = results()
    cases = (case("reference", at % 4, bf16=at % 8 > 3, accumulation=1 + at // 8) for at in range(count))
    value["cases"] = [_named(each) for each in cases]
    return value


def case(subject: str, stage: int, bf16: bool = False, right: bool = True, accumulation: int = 1) -> Json:
    """A case that was measured, its bytes as predicted but for torch-fsdp2's."""
    states = {
        "parameters": _SIZE // (2 if stage == 3 else 1),
        "gradients": _SIZE // (2 if stage >= 2 else 1),
        "optimizer": 2 * _SIZE // (2 if stage >= 1 else 1),
    }
    held = [states | {"peak": 70_000_000 - 1_000_000 * stage + rank, "peak_parameters": _SIZE} for rank in range(2)]
    ledger = {
        name: {"calls": 10 + stage, "sent": _SIZE, "received": _SIZE - stage} for name in ("all_gather", "all_to_all")
    }
    predicted = {name: dict(numbers) for name, numbers in ledger.items()}
    if subject == "torch-fsdp2":
        predicted["all_gather"]["sent"] -= 1
    return {
        "subject": subject,
        "stage": stage,
        "model": "mini",
        "parameters": _PARAMETERS,
        "verdict": "right" if right else "wrong",
        "reason": "",
        "scenario": _scenario(stage, bf16, accumulation),
        "digest": None,
        "held": None,
        "judgement": _judgement(subject, right, bitwise=subject == "reference"),
        "loss": {"first": 5.59, "last": 3.71},
        "memory": {"measured": held, "predicted": [states, states]},
        "traffic": {"measured": [ledger, ledger], "predicted": [predicted, predicted], "wire": 4 * _SIZE + 123_456},
        "offload": None,
        "time": time(0.150 + 0.02 * stage - 0.03 * bf16 + 0.01 * accumulation, split=subject == "reference"),
    }  # fmt: skip


def _named(value: Json) -> Json:
    """The case with its id."""
    scenario = Scenario.from_json(json.dumps(value["scenario"]))
    return {"id": Case(value["subject"], scenario).id, **value}


def offloaded(value: Json, setting: str) -> Json:
    """A case whose optimizer state and masters lie in host memory; slower, with less on the device."""
    ledger = {"to_host": 5_656_576, "to_device": 5_656_576, "read": 0, "written": 0}
    held = [each | {"host": each["optimizer"], "peak": 50_000_000} for each in value["memory"]["measured"]]
    return value | {
        "scenario": value["scenario"] | {"sub_group": 1_000_000},
        "offload": {"measured": [ledger, ledger], "predicted": [ledger, ledger], "setting": setting},
        "memory": {"measured": held, "predicted": None},
        "time": time(0.31, split=True),
    }


def bare(subject: str, stage: int, verdict: str, reason: str) -> Json:
    """A case that has a verdict and nothing else."""
    nothing = dict.fromkeys(("judgement", "loss", "memory", "traffic", "offload", "time"))
    return case(subject, stage) | nothing | {"verdict": verdict, "reason": reason}


def compute_only() -> Json:
    """The step without communication."""
    nothing = dict.fromkeys(("judgement", "memory", "traffic", "stage"))
    return case("compute-only", 0) | nothing | {"verdict": "measured"}


def time(median: float, split: bool) -> Json:
    """Six rounds around a median."""
    seconds = [median * (1 + spread) for spread in (-0.02, -0.01, 0.0, 0.0, 0.015, 0.05)]
    low, middle, high = statistics.quantiles(seconds, method="inclusive")
    shares = {"forward": 0.3, "backward": 0.5, "communication": 0.12, "optimizer": 0.08}
    return {
        "seconds": seconds, "median": middle, "quartiles": [low, high], "ratio": median / 0.14,
        "tokens_per_second": 1024 / median, "samples_per_second": 8 / median,
        "split": {name: share * median for name, share in shares.items()} if split else None,
        "flops": 1.7e10, "utilisation": 0.0213 if split else None,
    }  # fmt: skip


def collective(name: str, size: int) -> Json:
    """One size of one collective on two ranks."""
    seconds = 2e-5 + size / 4e9
    speed = size / seconds
    return {
        "collective": name, "bytes": size, "seconds": seconds, "algorithm_bandwidth": speed, "bus_bandwidth": speed / 2,
        "world": 2, "backend": "gloo", "quartiles": [0.9 * seconds, 1.1 * seconds],
    }  # fmt: skip


def kernel(name: str, implementation: str, against: str | None) -> Json:
    """One kernel at one size."""
    return {
        "kernel": name, "implementation": implementation, "elements": 1 << 20, "bytes": 28 << 20, "seconds": 1.5e-3,
        "bandwidth": (28 << 20) / 1.5e-3, "ratio": 1.5 if against else None, "against": against,
    }  # fmt: skip


def fit(stage: int, offload: str | None, parameters: int) -> Json:
    """The largest model in 512 MiB."""
    return {
        "subject": "reference", "stage": stage, "offload": offload, "dtype": "fp32", "world": 2, "limit": 512 << 20,
        "verdict": "measured", "reason": "", "layers": parameters // 789_760, "parameters": parameters,
        "beyond": parameters + 789_760, "seconds": 0.5 if parameters else None,
    }  # fmt: skip


def unfit(stage: int) -> Json:
    """A search that failed."""
    nothing = dict.fromkeys(("layers", "parameters", "beyond", "seconds"))
    return fit(stage, None, 0) | nothing | {"verdict": "raised", "reason": REASON}


def _scenario(stage: int, bf16: bool, accumulation: int) -> Json:
    scenario: Json = {"model": {"kind": "gpt"}, "steps": 4, "data": "text"}
    scenario |= {"stage": stage} if stage else {}
    scenario |= {"dtype": "bf16"} if bf16 else {}
    return scenario | ({"accumulation": accumulation} if accumulation > 1 else {})


def _judgement(subject: str, right: bool, bitwise: bool) -> Json:
    used = 0.5 if right else 1.2
    message = f"{subject}: right" if right else f"{subject}: WRONG (120% of the budget)\n  only the end differs"
    return {"bitwise": bitwise, "error": used * 5.7e-06, "budget_used": used, "message": message}
