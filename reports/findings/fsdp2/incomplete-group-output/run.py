"""FSDP2: if a group of modules is not complete at the end of a forward, the root's output is cast to its dtype."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Model(nn.Module):
    """Two modules, which are one group of parameters, in the order that ``calls`` gives; returns its loss in fp32."""

    def __init__(self, calls: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), calls

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(self, x).float().square().mean()


#: The calls of a forward; in the last two the group is not complete at its end.
CASES: dict[str, Callable[[Model, Tensor], Tensor]] = {
    "a, b": lambda model, x: model.b(model.a(x)),
    "a, b, a": lambda model, x: model.a(model.b(model.a(x))),
    "a": lambda model, x: model.a(x),
}


def loss(calls: Callable[[Model, Tensor], Tensor], output_dtype: torch.dtype | None) -> float:
    """The loss of a forward; the group's output dtype is that of its parameters, or is not set."""
    torch.manual_seed(0)
    model, x = Model(calls), torch.randn(3, 4)
    mesh = init_device_mesh("cpu", (1,))
    of_group = MixedPrecisionPolicy(torch.bfloat16, output_dtype=output_dtype)
    fully_shard([model.a, model.b], mesh=mesh, mp_policy=of_group)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(output_dtype=torch.float32))
    return float(model(x).detach())


def main() -> int:
    """1 if a loss depends on the output dtype, which is that of the modules' outputs in any case."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for name, calls in CASES.items():
            got, expected = loss(calls, torch.bfloat16), loss(calls, None)
            print(f"forward calls {name}: expected loss {expected}, got {got}")
            wrong |= got != expected
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
