"""Memory and traffic of torch's own engines, from their sources, for the models that zerobench builds.

DDP, and ZeroRedundancyOptimizer on top of it, reduce their gradients in buckets: one that holds all parameters before
the first backward, then, unless a parameter may be unused, buckets filled in the order of gradient completion; if the
order is new, it is broadcast. FSDP2 pads each parameter to rows that the ranks can share evenly.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from zerobench.model_specs import Odd
from zerobench.oracles.rules import RULES, state_keys
from zerobench.placement import Mesh
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.subject import Bytes, Theory
from zerobench.theory.touches import events
from zerobench.workload import groups
from zerobench.workload.data import DTYPES, takes_route
from zerobench.workload.models.blocks import block_groups

_Parameters = dict[str, nn.Parameter]

_FP32 = _INT32 = 4
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20  # bytes after which DDP closes a bucket: the first one, any other


class Silent(Theory):
    """An engine that sends nothing."""

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return {}


class Ddp(Theory):
    """No gradients and no optimizer state before the first step."""

    def memory(self, scenario: Scenario, model: nn.Module, rank: int = 0, steps: int = 1) -> Bytes:
        trained, size = _trained(model), DTYPES[scenario.dtype].itemsize
        masters = _FP32 * _numel(trained.values()) if scenario.dtype != "fp32" else 0
        stepped = _with_state(scenario, model, steps) & self._owned(scenario, trained, rank)
        return {
            "parameters": size * _numel(model.parameters()),
            "gradients": size * _numel(trained.values()) if steps else 0,  # the buckets, of which gradients are views
            "optimizer": masters + sum(_state(scenario, trained[name].numel()) for name in stepped),
        }

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        """The first step and the second differ from the rest."""
        return _ddp_traffic(scenario, model, rank, step)

    def skipped(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return _ddp_traffic(scenario, model, rank, step)

    def evaluation(self, scenario: Scenario, model: nn.Module, rank: int = 0, index: int = 0) -> dict[str, Traffic]:
        """Every rank has all parameters."""
        return {}

    def _owned(self, scenario: Scenario, trained: _Parameters, rank: int) -> set[str]:
        """The parameters with optimizer state on this rank."""
        return set(trained)


class DdpCopies(Ddp):
    """Without ``gradient_as_bucket_view`` the reducer's buckets are beside the gradients, and a parameter that no leaf
    of a step used has no gradient after it."""

    def memory(self, scenario: Scenario, model: nn.Module, rank: int = 0, steps: int = 1) -> Bytes:
        trained, last = _trained(model), _active(scenario, model, range(max(0, steps - 1), steps))
        gradients = DTYPES[scenario.dtype].itemsize * _numel(trained[name] for name in last)
        return super().memory(scenario, model, rank, steps) | {"gradients": gradients}

    def unseen(self, scenario: Scenario, model: nn.Module, rank: int = 0) -> int:
        """The buckets, which the reducer has in C++."""
        return DTYPES[scenario.dtype].itemsize * _numel(_trained(model).values())


class AccelerateDdp(DdpCopies):
    """Accelerate enters ``no_sync`` on several ranks only: on one rank DDP reduces after every micro-step."""

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return super().traffic(_synchronizing(scenario), model, rank, step)

    def skipped(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return super().skipped(_synchronizing(scenario), model, rank, step)


def _synchronizing(scenario: Scenario) -> Scenario:
    return scenario.but(schedule="micro_step") if scenario.world == 1 else scenario


class Zero1(Ddp):
    """ZeroRedundancyOptimizer on top of DDP: a broadcast of every parameter by its owner."""

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        total, trained = super().traffic(scenario, model, rank, step), _trained(model)
        own = self._owned(scenario, trained, rank)
        for name, p in trained.items():
            updated = _broadcast(scenario.world, name in own, _FP32 * p.numel())
            total["broadcast"] = total.get("broadcast", Traffic()) + updated
        return total

    def _owned(self, scenario: Scenario, trained: _Parameters, rank: int) -> set[str]:
        return _owners(scenario, trained)[rank]


class Fsdp2(Theory):
    """No gradients and no optimizer state before the first step."""

    def memory(self, scenario: Scenario, model: nn.Module, rank: int = 0, steps: int = 1) -> Bytes:
        return _fsdp2_memory(scenario, model, rank, steps)

    def traffic(self, scenario: Scenario, model: nn.Module, rank: int = 0, step: int = 2) -> dict[str, Traffic]:
        return _fsdp2_traffic(scenario, model, rank, step)


def _trained(model: nn.Module) -> _Parameters:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _numel(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)


def _active(scenario: Scenario, model: nn.Module, steps: range) -> set[str]:
    """The trainable parameters that received a gradient on some leaf of some of the ``steps``."""
    leaves = [(step, index) for step in steps for index in range(scenario.leaves_of(step))]
    routes = {takes_route(scenario, step, index) for step, index in leaves}
    done = {name for route in routes for name in _completed(scenario, model, route)}
    return done & set(_trained(model))


def _completed(scenario: Scenario, model: nn.Module, route: bool) -> list[str]:
    """Parameters in the order of gradient completion."""
    return [name for e in events(scenario, model, route) if e.kind == "complete" for name in e.names]


def _state(scenario: Scenario, numel: int) -> int:
    """Bytes that torch's optimizer keeps for a parameter: a step count is an fp32 tensor of its own."""
    count = _FP32 if RULES[scenario.optimizer.name].counts_steps else 0
    return _FP32 * len(state_keys(scenario.optimizer)) * numel + count


def _with_state(scenario: Scenario, model: nn.Module, steps: int) -> set[str]:
    """The parameters with a state in torch's optimizer after ``steps`` steps."""
    eager = RULES[scenario.optimizer.name].eager
    return set(_trained(model)) if eager else _active(scenario, model, range(steps))


def _owners(scenario: Scenario, trained: _Parameters) -> list[set[str]]:
    """ZeroRedundancyOptimizer: group by group, the largest parameter first, to the rank with the least so far."""
    owners: list[set[str]] = [set() for _ in range(scenario.world)]
    sizes = [0] * scenario.world
    for group in groups.members(scenario.optimizer, trained):
        for name in sorted(group, key=lambda name: trained[name].numel(), reverse=True):
            least = sizes.index(min(sizes))
            owners[least].add(name)
            sizes[least] += trained[name].numel()
    return owners


# DDP


def _ddp_traffic(scenario: Scenario, model: nn.Module, rank: int, step: int) -> dict[str, Traffic]:
    """An all-reduce of each bucket whenever gradients are reduced."""
    trained, size = _trained(model), DTYPES[scenario.dtype].itemsize
    some_unused = isinstance(scenario.model, Odd) and scenario.model.leaves_some_out
    reductions = scenario.accumulation if scenario.reduction == "micro_step" else 1
    in_order = [trained[name] for name in _completed(scenario, model, route=True) if name in trained]
    buckets = _buckets(trained.values() if some_unused else in_order, size)
    total = Traffic()
    for reduction in range(step * reductions, (step + 1) * reductions):
        first = reduction == 0 and not some_unused
        for elements in [_numel(trained.values())] if first else buckets:
            total += _all_reduce(scenario.world, rank, elements, size)
        if some_unused:  # the parameters used on any rank
            total += _all_reduce(scenario.world, rank, len(trained), _INT32)
    if not some_unused and step * reductions <= 1 < (step + 1) * reductions:
        sizes = _INT32 * (len(trained) + 1), _INT32 * len(buckets)  # the bucket of each parameter
        order = [_broadcast(scenario.world, rank == 0, size) for size in sizes]
        return {"all_reduce": total, "broadcast": order[0] + order[1]}
    return {"all_reduce": total}


def _buckets(parameters: Iterable[nn.Parameter], size: int) -> list[int]:
    """Elements of each bucket: parameters in order, until it holds its size or more."""
    buckets: list[int] = []
    current = 0
    for p in parameters:
        current += p.numel()
        if current * size >= (_BUCKET if buckets else _FIRST_BUCKET):
            buckets.append(current)
            current = 0
    return [*buckets, current] if current else buckets


def _all_reduce(world: int, rank: int, elements: int, size: int) -> Traffic:
    """A ring: every rank sends all chunks but two, in the reduction its next one's, in the gathering its own."""
    chunk = -(-elements // world)
    chunks = [max(0, min(chunk, elements - r * chunk)) for r in range(world)]
    before, own, after = chunks[rank - 1], chunks[rank], chunks[(rank + 1) % world]
    return Traffic(1, (2 * elements - own - after) * size, (2 * elements - before - own) * size)


def _broadcast(world: int, source: bool, size: int) -> Traffic:
    if world == 1:
        return Traffic(1, 0, 0)
    return Traffic(1, size, 0) if source else Traffic(1, 0, size)


# FSDP2


def _rows(p: nn.Parameter, world: int) -> int:
    """Rows of each rank's shard, padding included."""
    return -(-p.shape[0] // world)


def _shard(p: nn.Parameter, world: int) -> int:
    """Elements of a rank's shard, padding included."""
    return _rows(p, world) * (p.numel() // max(1, p.shape[0]))


def _held(p: nn.Parameter, world: int, rank: int) -> int:
    """Elements of the rows that a rank really has."""
    rows = _rows(p, world)
    return max(0, min(rows, p.shape[0] - rank * rows)) * (p.numel() // max(1, p.shape[0]))


def _fsdp2_memory(scenario: Scenario, model: nn.Module, rank: int, steps: int) -> Bytes:
    """The shards are the fp32 masters: parameters in fp32, else optimizer; gradients are padded, the state is not."""
    trained, world = _trained(model), scenario.mesh.shard
    ever, last = _with_state(scenario, model, steps), _active(scenario, model, range(max(0, steps - 1), steps))
    shards = _FP32 * sum(_shard(p, world) for p in model.parameters())
    state = sum(_state(scenario, _held(trained[name], world, rank % world)) for name in ever)
    low = scenario.dtype != "fp32"
    return {
        "parameters": 0 if low else shards,
        "gradients": _FP32 * sum(_shard(trained[name], world) for name in last),
        "optimizer": state + (shards if low else 0),
    }


def _calls(scenario: Scenario, block: str) -> tuple[int, int]:
    """The calls of a block in a forward, with gradients and without."""
    if block != "blocks.0" or not isinstance(scenario.model, Odd):
        return 1, 0
    return 1 + scenario.model.reused + scenario.model.listed_twice, int(scenario.model.no_grad)


def _fsdp2_traffic(scenario: Scenario, model: nn.Module, rank: int, step: int) -> dict[str, Traffic]:
    """Every block and the root gather once in forward, and the blocks once more in backward if stage 3 resharded them.

    If a block is called twice, it gathers for each call, at stage 2 because its first backward reshards it; for a call
    without gradients only at stage 3, where its forward reshards it. A norm, for clipping and fp16, reduces the norms
    of all gradients together. With replicas each reduced shard is summed over them.
    """
    mesh = scenario.mesh
    active = _active(scenario, model, range(step, step + 1))
    gathered = reduced = summed = Traffic()
    for block, members in _fsdp2_groups(model).items():
        calls, alone = _calls(scenario, block)
        times = 2 * calls + alone if block and scenario.placement.parameters else calls
        shard = sum(_shard(p, mesh.shard) for p in members.values())
        gathered += _moved(mesh, times, shard * DTYPES[scenario.dtype].itemsize)
        shard = sum(_shard(p, mesh.shard) for name, p in members.items() if name in active)
        if shard:
            wire = DTYPES[scenario.communication_dtype or scenario.dtype].itemsize
            reduced += _moved(mesh, 1, shard * wire)
            summed += _all_reduce(mesh.replicate, rank // mesh.shard, shard, wire)
    reductions = scenario.accumulation if scenario.reduction == "micro_step" else 1
    sums = summed * reductions if mesh.replicate > 1 else Traffic()
    if (scenario.clip or scenario.dtype == "fp16") and mesh.shard > 1:
        sums += _all_reduce(mesh.shard, rank % mesh.shard, len(active), _FP32)
    total = {"all_gather": gathered * scenario.accumulation, "reduce_scatter": reduced * reductions}
    return (total if mesh.shard > 1 else {}) | ({"all_reduce": sums} if sums.calls else {})


def _fsdp2_groups(model: nn.Module) -> dict[str, _Parameters]:
    """The parameters of each group of blocks by its first block, and under "" those of the root."""
    firsts = {block: group[0] for group in block_groups(model) for block in group}
    names = {block: f"blocks.{name}" for name, block in model.get_submodule("blocks").named_children()}
    groups: dict[str, _Parameters] = {}
    for name, p in model.named_parameters():
        block = model.get_submodule(".".join(name.split(".")[:2])) if name.startswith("blocks.") else None
        groups.setdefault(names[firsts[block]] if block else "", {})[name] = p
    return groups


def _moved(mesh: Mesh, calls: int, size: int) -> Traffic:
    moved = (mesh.shard - 1) * size * calls
    return Traffic(calls, moved, moved)
