"""torch's optimizers round otherwise on CUDA than on a CPU, and the canonical trainer steps its masters on the CPU.

The roundings of CUDA are emulated here from torch's sources, so this needs no GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from zerobench.dispatch import DispatchMode
from zerobench.engine.ops.exact import fma, single
from zerobench.engine.ops.runs import one_run
from zerobench.engine.ops.update import AdamValues, adam_step
from zerobench.model_specs import Gpt
from zerobench.oracles.canonical_trainer import Trainer, arithmetic
from zerobench.oracles.optimizer import ExactUpdate
from zerobench.scenario import Optimizer, Scenario
from zerobench.subject import State

_SCENARIO = Scenario(model=Gpt(vocab=256, context=8, width=16, heads=2, layers=1), world=1, steps=2)


class CudaRoundings(DispatchMode):
    """Inside the ``with`` block, fp32 operations of torch's optimizers round on the CPU as they do on CUDA.

    ``addcmul`` and ``addcdiv`` (ATen/native/cuda/DeviceAddCmulCdiv.cuh) round the product or quotient of the tensors,
    then fuse its product with the scalar and the sum. A division by a number is a multiplication by its reciprocal
    (ATen/native/cuda/BinaryDivTrueKernel.cu).
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given, aten = kwargs or {}, torch.ops.aten
        if func in (aten.addcmul_.default, aten.addcdiv_.default):
            total, one, other = args
            inner = one * other if func is aten.addcmul_.default else one / other
            return total.copy_(fma(single(given.get("value", 1.0))[0], inner, total))
        if func is aten.div.Tensor and isinstance(args[1], float):
            return args[0] * (1 / torch.tensor(args[1])).item()
        return func(*args, **given)


def test_the_engines_adam_is_not_torchs_on_cuda() -> None:
    """A sixth of the parameters and a third of their second moments differ after one step; on a CPU none does."""
    random = torch.Generator().manual_seed(0)
    start = torch.randn(1 << 16, generator=random) * 0.02
    gradient = torch.randn(1 << 16, generator=random) * 0.01
    ours, exp_avg, exp_avg_sq = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    values = AdamValues(1e-3, 0.9, 0.999, 1e-8, 0.01, True, 1)
    adam_step(ours, gradient, exp_avg, exp_avg_sq, None, torch.ones(1), one_run(len(ours), values))
    theirs, state = _torchs_step(start, gradient)
    assert torch.equal(ours, theirs)
    assert torch.equal(exp_avg_sq, state["exp_avg_sq"])
    with CudaRoundings():
        theirs, state = _torchs_step(start, gradient)
    assert (ours != theirs).float().mean() > 0.1
    assert (exp_avg_sq != state["exp_avg_sq"]).float().mean() > 0.2


def _torchs_step(start: Tensor, gradient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = gradient
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01, foreach=False)
    with ExactUpdate():
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


class _StepsOnTheDevice(Trainer):
    """The canonical trainer if it stepped its masters on a GPU."""

    def update(self, gradients: State) -> None:
        with CudaRoundings():
            super().update(gradients)


def test_an_oracle_that_steps_on_cuda_would_differ() -> None:
    right, wrong = (
        kind(_SCENARIO, arithmetic(_SCENARIO), frozenset({"parameters"})).train(())
        for kind in (Trainer, _StepsOnTheDevice)
    )
    pairs = zip(right.steps[-1].parameters.values(), wrong.steps[-1].parameters.values(), strict=True)
    assert sum(int((one != other).sum()) for one, other in pairs) > 100


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "adagrad"])
def test_the_oracle_steps_on_the_cpu(name: Any) -> None:
    """While the model is on another device, masters and optimizer states are on the CPU; torch refuses gradients that
    are not."""
    elsewhere: Any = "meta"
    scenario = Scenario(model=_SCENARIO.model, world=1, device=elsewhere, optimizer=Optimizer(name=name))
    trainer = Trainer(scenario, arithmetic(scenario))
    trainer.update({name: torch.zeros(p.shape) for name, p in trainer.leaves.working.items()})
    states = [tensor for state in trainer.states().values() for tensor in state.values()]
    assert {parameter.device.type for parameter in trainer.leaves.working.values()} == {elsewhere}
    assert {tensor.device.type for tensor in [*trainer.masters.values(), *states]} == {"cpu"}
