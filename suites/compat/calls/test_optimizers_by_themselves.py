"""DeepSpeed's optimizer classes in a loop without an engine, as DeepSpeed's own tests step them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.errors import ConfigError
from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_ADAM = {"lr": 1e-2, "weight_decay": 0.1}
#: By DeepSpeed's class: its arguments, and torch's optimizer with the same step, if there is one.
_CLASSES: dict[str, tuple[dict[str, Any], Any]] = {
    "adam.FusedAdam": (_ADAM, torch.optim.AdamW),
    "adam.DeepSpeedCPUAdam": (_ADAM, torch.optim.AdamW),
    "adagrad.DeepSpeedCPUAdagrad": (_ADAM, torch.optim.Adagrad),
    "lion.DeepSpeedCPULion": (_ADAM, None),
}
_DTYPES = [torch.float32, torch.bfloat16]


def _made(path: str, parameters: Any) -> Any:
    made: Any = loops.deepspeed().ops
    for name in path.split("."):
        made = getattr(made, name)
    return made(parameters, **_CLASSES[path][0])


def _net(dtype: torch.dtype) -> nn.Sequential:
    """One weight is not contiguous."""
    net = loops.model().to(dtype)
    weight = next(net.parameters())
    weight.data = weight.data.t().contiguous().t()
    return net


def _stepped(net: nn.Module, optimizer: Any, steps: int = 4) -> Tensor:
    """The parameters after steps, each other one by a closure."""
    draw, dtype = torch.Generator().manual_seed(2), next(net.parameters()).dtype
    for step in range(steps):
        inputs = torch.randn(4, 5, generator=draw).to(dtype)

        def closure(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = net(inputs).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if step % 2:
            assert optimizer.step(closure).requires_grad
        else:
            closure()
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.mark.parametrize("path", [path for path, (_, of_torch) in _CLASSES.items() if of_torch])
def test_as_torch(path: str) -> None:
    """The steps are those of torch's optimizer."""
    keys, of_torch = _CLASSES[path]
    nets = [_net(torch.float32) for _ in range(2)]
    found = _stepped(nets[0], _made(path, nets[0].parameters()))
    torch.testing.assert_close(found, _stepped(nets[1], of_torch(nets[1].parameters(), **keys)), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("path", _CLASSES)
def test_state_that_is_loaded(path: str, dtype: torch.dtype) -> None:
    """A new optimizer with the state of the old one takes the same step, but for torch's rounding of it to 16 bits."""
    net, other = _net(dtype), _net(dtype)
    old, new = _made(path, net.parameters()), _made(path, other.parameters())
    _stepped(net, old, 2)
    other.load_state_dict(net.state_dict())
    new.load_state_dict(old.state_dict())
    new.param_groups[0]["lr"] = old.param_groups[0]["lr"]
    near = 0.0 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(_stepped(other, new, 1), _stepped(net, old, 1), rtol=0, atol=near)


def _both(group: dist.ProcessGroup, path: str) -> bool:
    """Whether an engine's step has the same bits; then the optimizer refuses, and an engine refuses one with state."""
    data, nets, found = loops.data()[:8][0], [loops.model() for _ in range(2)], []
    alone, given = (_made(path, net.parameters()) for net in nets)
    keys = loops.config(0, optimizer=None, scheduler=None, train_batch_size=8, gradient_accumulation_steps=1)
    engine, *_ = loops.deepspeed().initialize(model=nets[1], optimizer=given, config=keys)
    for _ in range(3):
        loss = nets[0](data).square().mean()
        loss.backward()
        alone.step()
        alone.zero_grad()
        engine.backward(engine(data).square().mean())
        engine.step()
        found.append(all(torch.equal(*each) for each in zip(*(net.parameters() for net in nets), strict=True)))
    with pytest.raises(RuntimeError, match="was given to an engine, which steps it; call engine"):
        given.step()
    with pytest.raises(ConfigError, match="has stepped already"):
        loops.deepspeed().initialize(model=nets[0], optimizer=alone, config=keys)
    engine.destroy()
    return all(found)


@pytest.mark.parametrize("path", _CLASSES)
def test_as_the_engine(pool: Pool, path: str) -> None:
    """The steps have the bits of an engine whose four ranks have the same samples."""
    assert pool.run(_both, path, world=4) == [True] * 4
