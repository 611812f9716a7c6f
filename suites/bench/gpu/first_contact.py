"""First contact: is the engine right on this GPU, and where does its time go? A few minutes, one short table each."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import zerobench
from zerobench.engine.ops import folding, packing, sumsq, update
from zerobench.engine.ops.exact import single
from zerobench.engine.ops.runs import one_run
from zerobench.model_specs import Gpt
from zerobench.oracles.optimizer import ExactUpdate
from zerobench.scenario import Scenario
from zerobench.suites.bench.runs import Runs
from zerobench.workload import models
from zerobench.workload.sizes import SIZES

#: A section gets the device and prints its table; an assertion in it says what is wrong.
Section = Callable[[str], None]

_HALVES = (torch.bfloat16, torch.float16)


def measure(runs: Runs) -> Iterator[bool]:
    """Run all sections; one that fails prints its error and ends no other."""
    for section in (build, bits, oracle, ceilings, calls, step):
        runs.progress(f"\n== {section.__name__}: {section.__doc__}")
        begin = time.perf_counter()
        try:
            section(runs.device)
            good = True
        except Exception:  # noqa: BLE001  # the next section is worth running in any case
            runs.progress(traceback.format_exc())
            good = False
        if runs.device == "cuda":
            torch.cuda.empty_cache()
        runs.progress(f"   ({time.perf_counter() - begin:.0f} s)")
        yield good


def build(device: str) -> None:
    """The kernels are built here, and this is the machine."""
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        print(f"{found.name}: {found.multi_processor_count} multiprocessors, {found.total_memory >> 30} GiB")
    for built in zerobench.prepare_kernels():
        print(f"{built.title}: {built.compiler.splitlines()[0]}")


def bits(device: str) -> None:
    """Every kernel has the bits of its definition, aligned and not, on more than one wave of blocks."""
    n, random = _small(device, 1 << 14, 1 << 23) + 4099, torch.Generator().manual_seed(1)
    for offset in (0, 1):
        for half in _HALVES:
            _compare(*_random_cases(n, offset, half, device, random))
    print("all equal")


def _random_cases(n: int, offset: int, half: torch.dtype, device: str, random: torch.Generator) -> tuple[Any, ...]:
    def values(dtype: torch.dtype, rows: int = 1) -> Tensor:
        made = torch.randn(rows, n + offset, generator=random).to(device, dtype)[:, offset:]
        return made if rows > 1 else made[0]

    squares = values(torch.float32).abs()
    return (values(torch.float32), values(half), values(torch.float32), squares, values(half)), values(half, 3)


def _compare(tensors: tuple[Tensor, ...], rows: Tensor) -> None:
    """Adam, fold, sums of squares and pack on the same values, by kernel and by definition."""
    factor, runs = torch.tensor([0.5], device=rows.device), [0, len(tensors[0]), 0]
    scalars = single(1 - 1e-5, 0.0, 0.1, 0.999, 0.001, 0.03, 1e-8, -1e-3)
    kernel: list[Any] = [*(tensor.clone() for tensor in tensors), factor, runs, scalars]
    definition: list[Any] = [*(tensor.clone() for tensor in tensors), factor, runs, scalars]
    update.adam_native(*kernel)
    update.adam_definition(*definition)
    for ours, theirs in zip(kernel[: len(tensors)], definition[: len(tensors)], strict=True):
        assert torch.equal(ours, theirs), "adam_step differs from its definition"
    one, other = tensors[0].clone(), tensors[0].clone()
    folding.native(one, rows, False)
    folding.definition(other, rows, False)
    assert torch.equal(one, other), "fold differs from its definition"
    chunks = tensors[1][: len(tensors[1]) // 1024 * 1024]
    assert torch.equal(sumsq.native(chunks, 1024), sumsq.definition(chunks, 1024)), "chunk_sumsq differs"
    flat, expected = (torch.full((len(tensors[0]) + 8,), torch.nan, device=one.device) for _ in range(2))
    packing.pack_native(flat, [tensors[0]], [7])
    packing.pack_definition(expected, [tensors[0]], [7])
    assert torch.equal(flat, expected), "pack differs from its definition"


def oracle(device: str) -> None:
    """The shares of values in which torch's AdamW on this device differs from the contract, after one step."""
    start, gradient = (torch.randn(1 << 20, device=device) * scale for scale in (0.02, 0.01))
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.01, foreach=False)
    theirs.grad = gradient.clone()
    with ExactUpdate():
        optimizer.step()
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    values = update.AdamValues(1e-3, 0.9, 0.999, 1e-8, 0.01, True, 1)
    update.adam_step(start, gradient, first, second, None, torch.ones(1, device=device), one_run(len(start), values))
    differ = float((start != theirs.detach()).float().mean())
    squares = float((second != optimizer.state[theirs]["exp_avg_sq"]).float().mean())
    print(f"parameters {differ:.3f}, exp_avg_sq {squares:.3f} (0 on a CPU; 0.17 and 0.34 are expected on CUDA)")


def ceilings(device: str) -> None:
    """Terabytes per second of plain operations, of which the kernels should reach nine tenths."""
    n = _small(device, 1 << 16, 1 << 30)
    a, b = torch.rand(n, device=device), torch.rand(n, device=device)
    operations: dict[str, tuple[Callable[[], object], int]] = {
        "copy": (lambda: a.copy_(b), 8),
        "write": (lambda: a.fill_(1.5), 4),
        "read": (b.amax, 4),
        "add in place": (lambda: a.add_(b), 12),
    }
    for name, (operation, size) in operations.items():
        print(f"{name:14}{size * n / _seconds(device, operation) / 1e12:8.3f}")


def calls(device: str) -> None:
    """Microseconds of host time for one call on next to nothing."""
    half, n = torch.bfloat16, 1024
    p, m, v = (torch.rand(n, device=device) for _ in range(3))
    g, rows = torch.rand(n, device=device).to(half), torch.rand(1, n, device=device).to(half)
    factor, values = torch.ones(1, device=device), update.AdamValues(1e-3, 0.9, 0.999, 1e-8, 0.01, True, 3)
    tensors = [torch.rand(48, device=device).to(half) for _ in range(12)]
    flat = torch.empty(768, dtype=half, device=device)
    operations: dict[str, Callable[[], object]] = {
        "adam_step": lambda: update.adam_step(p, g, m, v, None, factor, one_run(n, values)),
        "fold": lambda: folding.fold(p, rows, first=True),
        "chunk_sumsq": lambda: sumsq.chunk_sumsq(p, 1024),
        "pack of 12": lambda: packing.pack(flat, tensors, list(range(0, 768, 64))),
        "torch copy_": lambda: p.copy_(m),
    }
    for name, operation in operations.items():
        print(f"{name:14}{1e6 * _host_seconds(device, operation):8.1f}")


def step(device: str) -> None:
    """Milliseconds of a GPT's step on one rank, without a fence between steps: run on, host time, and waits for the
    device; of plain mixed precision with torch's fused AdamW, and of the engine at each stage."""
    spec = SIZES["gpt2" if device == "cuda" else "nano"]
    assert isinstance(spec, Gpt)
    scenario = Scenario(model=spec, world=1, dtype="bf16", micro_batch=4, data="text")
    tokens = torch.randint(256, (4, spec.context), device=device)
    _time_step(device, "plain", _plain(models.build(scenario).to(device), tokens))
    for stage in range(4):
        config = {
            "train_batch_size": 4,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": {"stage": stage},
        }
        engine, *_ = zerobench.initialize(models.build(replace(scenario, stage=stage)), config, device=device)

        def one(engine: Any = engine) -> None:
            engine.backward(engine(tokens=tokens, targets=tokens))
            engine.step()

        waits = _time_step(device, f"stage {stage}", one)
        engine.destroy()
        assert waits <= 1 or stage == 3, "a step of stages 0 to 2 waits for more than the check of the step before"


def _plain(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """A step of bf16 parameters with fp32 masters."""
    masters: list[Tensor] = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    parameters: list[Tensor] = list(model.bfloat16().parameters())

    def one() -> None:
        model(tokens=tokens, targets=tokens).backward()
        for master, parameter in zip(masters, parameters, strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, masters)

    return one


def _time_step(device: str, name: str, one: Callable[[], None]) -> int:
    """Print a row; returns how often the host waits for the device in a step."""
    times = _small(device, 1, 10)
    seconds, host = _seconds(device, one, times), _host_seconds(device, one, times)
    waits = _waits(device, one)
    print(f"{name:8} {1e3 * seconds:8.2f}, host {1e3 * host:8.2f}, waits {waits}")
    return waits


def _waits(device: str, one: Callable[[], None]) -> int:
    """Synchronisations of a stream or an event with the host."""
    gpu = [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as seen:
        one()
    kinds = ("cudaStreamSynchronize", "cudaEventSynchronize")
    return sum(each.count for each in seen.key_averages() if each.key in kinds)


def _small(device: str, rehearsal: int, real: int) -> int:
    return real if device == "cuda" else rehearsal


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _seconds(device: str, operation: Callable[[], object], times: int = 10) -> float:
    """Seconds of one operation of several in one fence: the median of three."""
    found = []
    for _ in range(4):  # the first warms up
        _wait(device)
        begin = time.perf_counter()
        for _ in range(times):
            operation()
        _wait(device)
        found.append((time.perf_counter() - begin) / times)
    return statistics.median(found[1:])


def _host_seconds(device: str, operation: Callable[[], object], times: int = 100) -> float:
    """Seconds until the host may go on after one operation."""
    _wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        operation()
    seconds = (time.perf_counter() - begin) / times
    _wait(device)
    return seconds
