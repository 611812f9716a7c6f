"""Leaves: the forward and backward of each rank's micro-steps in the oracle's one process, and its evaluations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zerobench.oracles.contributions import Contributions
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Policies, State
from zerobench.workload import models
from zerobench.workload.data import DTYPES, leaf, seed_leaf
from zerobench.workload.forwards import casting, loss_of


def initial_model(scenario: Scenario, policies: Policies) -> nn.Module:
    """The model with the values that the fp32 masters start from, on the CPU."""
    model = models.build(scenario)
    if not scenario.freezes(loaded=False):
        model.requires_grad_(True)
    if policies.masters_from == "rounded":
        model.to(DTYPES[scenario.dtype]).float()
    return model


class Leaves:
    """The model in the dtype of its forwards, on the Scenario's device, with the buffers of each rank.

    ``losses`` are those of the step's leaves so far. If ``magnitudes`` is set, two sums of the step have for each
    parameter: ``magnitudes`` the absolute contributions; and ``lost``, in fp16 with more than one micro-step, the
    absolute changes of the contributions if the loss is divided by the micro-steps before the backward, as many
    engines do, because more values underflow. The gradients are given on ``device``.
    """

    def __init__(
        self,
        scenario: Scenario,
        model: nn.Module,
        dtype: torch.dtype,
        policies: Policies,
        magnitudes: bool,
        device: torch.device,
    ) -> None:
        self.scenario, self.device = scenario, device
        self.model = model.to(scenario.device)
        self.working = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for p in model.parameters():
            p.data = p.data.to(dtype)
        if policies.strides == "contiguous":
            for p in self.working.values():
                p.data = p.data.contiguous()
        self.buffers = [[b.clone() for b in model.buffers()] for _ in range(scenario.world)]
        self.losses: list[Tensor] = []
        self.lost: State = {}
        self._contributions = Contributions(self.working if magnitudes else {})
        self._caches = policies.casts == "once"
        self._shares_buffers = policies.buffers_with in scenario.settings
        self._reference = dtype == torch.float64
        rounds = scenario.accumulation.bit_count() != 1 or dtype == torch.float16  # fp16 underflows as well
        self._divides = magnitudes and scenario.accumulation > 1 and rounds

    @property
    def magnitudes(self) -> State:
        """Of this step so far, for each parameter the sum of the absolute contributions."""
        return self._contributions.sums

    def begin(self) -> None:
        """Forget the step before."""
        self.losses, self._contributions.sums, self.lost = [], {}, {}

    def gradient(self, step: int, index: int, scale: float) -> State:
        """The gradient of one leaf, by parameter that received one, in the model's dtype;
        the loss is multiplied by ``scale`` before the backward."""
        if index % self.scenario.world == 0:
            self._share_buffers()
        buffers = self.buffers[index % self.scenario.world]
        seed_leaf(self.scenario, step, index)
        self._set_buffers(buffers)
        batch = self._batch(leaf(self.scenario, step, index))
        loss = loss_of(self.scenario, self.model, batch, self._caches)
        with self._contributions.of_backward():
            (loss * scale).backward(retain_graph=self._divides)  # type: ignore[no-untyped-call]
        for kept, buffer in zip(buffers, self.model.buffers(), strict=True):
            kept.copy_(buffer)
        self.losses.append(loss.detach())
        gradient = self._received()
        if self._divides:
            _add_absolute(self.lost, self._lost_by_dividing(loss, scale, gradient))
        return gradient

    def _lost_by_dividing(self, loss: Tensor, scale: float, gradient: State) -> State:
        """The difference if the loss is divided by the micro-steps before the backward."""
        micro_steps = self.scenario.accumulation
        (loss * (scale / micro_steps)).backward()  # type: ignore[no-untyped-call]
        divided = self._received()
        return {name: g.double() - micro_steps * divided[name].double() for name, g in gradient.items()}

    def _received(self) -> State:
        """Take the gradients of the parameters that have one."""
        found = {name: p.grad.to(self.device) for name, p in self.working.items() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return found

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Each rank's evaluation of a batch: [world]."""
        self.model.eval()
        self._share_buffers()
        losses = []
        for buffers in self.buffers:
            self._set_buffers(buffers)
            with casting(self.scenario, self._caches):
                losses.append(self.model(**self._batch(batch)).cpu())
            if not buffers:  # the ranks differ in nothing
                losses *= self.scenario.world
                break
        self.model.train()
        return torch.stack(losses)

    def _share_buffers(self) -> None:
        """Give all ranks the buffers of rank 0, if the Scenario has the setting for that."""
        if self._shares_buffers:
            self.buffers = [[b.clone() for b in self.buffers[0]] for _ in self.buffers]

    @torch.no_grad()
    def _set_buffers(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self.model.buffers(), values, strict=True):
            buffer.copy_(value)

    def _batch(self, batch: Batch) -> Batch:
        """The batch unchanged, or in float64."""
        if not self._reference:
            return batch
        return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in batch.items()}


def _add_absolute(sums: State, terms: State) -> None:
    for name, term in terms.items():
        sums[name] = sums.get(name, 0) + term.double().abs()
