"""Right engines as a newcomer writes them: the ten methods of the protocol, torch's optimizers, and no promise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.oracles.optimizer import build_optimizer
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome, State, Subject
from zerobench.workload.data import DTYPES


class _ByHand(Subject):
    """A step's gradients wait on each rank; an all-reduce of each comes with the first call that needs them.

    An optimizer has no states before a parameter's first update, and none are given.
    """

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.model, self.scenario, self.group = model, scenario, group
        self.working = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = self.make_masters()
        self.optimizer = build_optimizer(scenario.optimizer, self.masters) if self.masters else None
        self.scale = scenario.loss_scale.static if scenario.dtype == "fp16" else 1.0
        self.sums: State = {}
        self.reduced: State | None = None

    def make_masters(self) -> dict[str, nn.Parameter]:
        """The parameters that this rank updates."""
        raise NotImplementedError

    def micro_step(self, batch: Batch) -> Tensor:
        loss: Tensor = self.model(**batch)
        (loss * (self.scale / self.scenario.accumulation)).backward()  # type: ignore[no-untyped-call]
        for name, p in self.working.items():
            if p.grad is not None:
                self.sums[name] = self.sums[name] + p.grad.float() if name in self.sums else p.grad.float()
                p.grad = None
        return loss.detach()

    def gradients(self) -> State:
        return {name: gradient.clone() for name, gradient in self._means().items()}

    def _means(self) -> State:
        if self.reduced is None:
            used = self._used()
            self.reduced = {name: self._mean(name) for name, each in zip(self.working, used, strict=True) if each}
            self.sums = {}
        return self.reduced

    def _used(self) -> list[float]:
        """For each parameter, how many ranks have a gradient."""
        used = torch.tensor([float(name in self.sums) for name in self.working])
        dist.all_reduce(used, group=self.group)
        found: list[float] = used.tolist()
        return found

    def _mean(self, name: str) -> Tensor:
        total = self.sums.pop(name, torch.zeros_like(self.working[name], dtype=torch.float32)).contiguous()
        dist.all_reduce(total, group=self.group)
        return total.div_(self.scenario.world * self.scale)

    def step(self) -> Outcome:
        gradients = self._means()
        norm = math.sqrt(sum(float(each.double().square().sum()) for each in gradients.values()))
        finite = math.isfinite(norm)
        if finite:
            self._update(gradients, norm)
        self.sums, self.reduced = {}, None
        return Outcome(norm=norm, skipped=not finite, loss_scale=self.scale)

    def _update(self, gradients: State, norm: float) -> None:
        clip = self.scenario.clip
        factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        for name, master in self.masters.items():
            master.grad = gradients[name].mul_(factor) if name in gradients else None
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.publish()

    def publish(self) -> None:
        """Give the updated parameters to every rank's model."""
        raise NotImplementedError

    def evaluate(self, batch: Batch) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            loss: Tensor = self.model(**batch)
        self.model.train()
        return loss

    def model_parameters(self) -> State:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def own_states(self) -> dict[str, State]:
        """The states of this rank's masters that have been updated."""
        states = {} if self.optimizer is None else self.optimizer.state
        updated = ((name, states[p]) for name, p in self.masters.items() if p in states)
        return {name: {key: t for key, t in state.items() if key != "step"} for name, state in updated}

    def resident(self) -> dict[str, Sequence[Tensor]]:
        states = [] if self.optimizer is None else self.optimizer.state.values()
        masters = [p.detach() for name, p in self.masters.items() if p is not self.working[name]]
        return {
            "parameters": [p.detach() for p in self.model.parameters()],
            "gradients": list({**self.sums, **(self.reduced or {})}.values()),
            "optimizer": [*masters, *_tensors(state.values() for state in states)],
        }


def _tensors(states: Iterable[Iterable[Tensor]]) -> Iterator[Tensor]:
    return (tensor for state in states for tensor in state)


class RightByHand(_ByHand):
    """Written by hand with masters, in every precision, dividing the loss before each backward."""

    name = "right-by-hand"

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.stage != 0 or scenario.scales_dynamically:
            return "stage 0 and a static loss scale only"
        if {scenario.communication_dtype, scenario.accumulator_dtype} - {None, "fp32"}:
            return "adds in fp32"
        return None

    def make_masters(self) -> dict[str, nn.Parameter]:
        masters = {name: nn.Parameter(p.detach().float().clone()) for name, p in self.working.items()}
        for p in self.model.parameters():
            p.data = p.data.to(DTYPES[self.scenario.dtype])
        return masters

    @torch.no_grad()
    def publish(self) -> None:
        for name, master in self.masters.items():
            self.working[name].copy_(master)

    def parameters(self) -> State:
        return {name: p.detach().clone() for name, p in self.masters.items()}

    def optimizer_state(self) -> dict[str, State]:
        return self.own_states()


class RightByOwners(_ByHand):
    """Written by hand at stage 1: each parameter has an owner, which updates it and broadcasts it."""

    name = "right-by-owners"

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if scenario.stage != 1 or scenario.dtype != "fp32":
            return "stage 1 in fp32 only"
        return None

    def _owner(self, name: str) -> int:
        return list(self.working).index(name) % self.scenario.world

    def make_masters(self) -> dict[str, nn.Parameter]:
        rank = dist.get_rank(self.group)
        return {name: p for name, p in self.working.items() if self._owner(name) == rank}

    @torch.no_grad()
    def publish(self) -> None:
        for name, p in self.working.items():
            value = p.contiguous()
            if value.numel():
                dist.broadcast(value, dist.get_global_rank(self.group, self._owner(name)), group=self.group)
                p.copy_(value)

    def parameters(self) -> State:
        return {name: p.detach().clone() for name, p in self.working.items()}

    def optimizer_state(self) -> dict[str, State]:
        everyone: list[dict[str, State]] = [{} for _ in range(self.scenario.world)]
        dist.all_gather_object(everyone, self.own_states(), group=self.group)
        return {name: state for rank in everyone for name, state in rank.items()}
