"""Sequences of operations as users' scripts make them: each stage gives stage 0's outcomes, or refuses by name."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

#: An operation's outcome if stage 3 refuses it; the sequence then leaves it out at stage 0.
_REFUSED = "refused"

_Settings = dict[str, Any]


class _Job:
    """An engine and the operations on it; each returns a tensor or a number."""

    def __init__(self, stage: int, dtype: str, zero: _Settings, folder: str) -> None:
        self.ds, self.folder = loops.deepspeed(), f"{folder}/{stage}"
        keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
        keys["zero_optimization"] |= zero if stage == 3 else {}
        keys |= {} if dtype == "fp32" else {dtype: {"enabled": True}}
        self.net = loops.model()
        self.engine, *_ = self.ds.initialize(model=self.net, config=keys)
        self.parameters = list(self.net.parameters())
        self.x = torch.linspace(-1, 1, 10).view(2, 5).to(self.parameters[0].dtype) * (1 + dist.get_rank())

    def gathered(self, *which: nn.Parameter, modifier_rank: int | None = None) -> Any:
        return self.ds.zero.GatheredParameters(list(which or self.parameters), modifier_rank=modifier_rank)

    def train(self, p: nn.Parameter) -> object:
        loss = self.engine(self.x).float().square().mean()
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def evaluate(self, p: nn.Parameter) -> object:
        with torch.no_grad():
            return self.engine(self.x).float().sum()

    def part(self, p: nn.Parameter) -> object:
        with torch.no_grad():
            return self.net[0](self.x).float().sum()

    def forward_alone(self, p: nn.Parameter) -> object:
        return self.net(self.x).detach().float().sum()

    def read(self, p: nn.Parameter) -> object:
        with self.gathered(p):
            return p.detach().clone()

    def nested(self, p: nn.Parameter) -> object:
        with self.gathered(p), self.gathered():
            return sum(each.detach().float().sum() for each in self.parameters)

    def numpy(self, p: nn.Parameter) -> object:
        with self.gathered(p):
            return float(p.detach().float().numpy().sum())

    def after(self, p: nn.Parameter) -> object:
        with self.gathered(p):
            kept = p.data
        return kept.clone()

    def state_dict(self, p: nn.Parameter) -> object:
        with self.gathered():
            return torch.cat([each.float().flatten() for each in self.net.state_dict().values()])

    def edit(self, p: nn.Parameter) -> object:
        with self.gathered(p, modifier_rank=1):
            if dist.get_rank() == 1:
                p.data.mul_(0.5)
        return 0

    def edit_on_all(self, p: nn.Parameter) -> object:
        with self.gathered(), torch.no_grad():
            p.add_(0.25)
        return 0

    def replace(self, p: nn.Parameter) -> object:
        with self.gathered(p, modifier_rank=1):
            p.data = p.data * (2 if dist.get_rank() else 3)
        return 0

    def replace_on_all(self, p: nn.Parameter) -> object:
        with self.gathered():
            vector_to_parameters(parameters_to_vector(self.parameters) * 0.75, self.parameters)
        return 0

    def replace_outside(self, p: nn.Parameter) -> object:
        p.data = p.data.clamp(-0.25, 0.25)
        return 0

    def load_whole(self, p: nn.Parameter) -> object:
        with self.gathered():
            self.net.load_state_dict({name: value * 0.5 for name, value in self.net.state_dict().items()})
        return 0

    def save(self, p: nn.Parameter) -> object:
        return self.engine.save_checkpoint(self.folder, client_state={"place": p.numel()})

    def load(self, p: nn.Parameter) -> object:
        path, state = self.engine.load_checkpoint(self.folder)
        return (path is None, state)

    def toggle(self, p: nn.Parameter) -> object:
        p.requires_grad_(
            not p.requires_grad or not any(each.requires_grad for each in self.parameters if each is not p)
        )
        return 0

    def gradient(self, p: nn.Parameter) -> object:
        self.engine.backward(self.engine(self.x).float().square().mean())
        found = self.ds.utils.safe_get_full_grad(p)
        self.engine.step()
        return found

    def set_gradient(self, p: nn.Parameter) -> object:
        self.engine.backward(self.engine(self.x).float().square().mean())
        self.ds.utils.safe_set_full_grad(p, torch.full(p.shape, 0.5))
        self.engine.step()
        return self.engine.get_global_grad_norm()

    def overflow(self, p: nn.Parameter) -> object:
        if self.engine.fp16_enabled():
            self.engine.backward(self.engine(self.x * torch.inf).float().square().mean())
            self.engine.step()
        return self.engine.skipped_steps

    def set_moment(self, p: nn.Parameter) -> object:
        self.ds.utils.safe_set_full_optimizer_state(p, torch.full(p.shape, 0.5), "exp_avg")
        return 0

    def master(self, p: nn.Parameter) -> object:
        return self.ds.utils.safe_get_full_fp32_param(p)

    def moment(self, p: nn.Parameter) -> object:
        return self.ds.utils.safe_get_full_optimizer_state(p, "exp_avg")

    def set_master(self, p: nn.Parameter) -> object:
        self.ds.utils.safe_set_full_fp32_param(p, torch.full(p.shape, 0.125))
        return 0

    def outside(self, p: nn.Parameter) -> object:
        return p.norm().detach()

    def write_outside(self, p: nn.Parameter) -> object:
        p.data.mul_(2.0)
        return self.train(p)  # from which on the masters have it

    def save_outside(self, p: nn.Parameter) -> object:
        torch.save(self.net.state_dict(), io.BytesIO())
        return 0


_OPERATIONS: dict[str, Callable[[_Job, nn.Parameter], object]] = {
    name: value for name, value in vars(_Job).items() if not name.startswith("_") and name != "gathered"
}
_Sequence = list[tuple[str, int]]


def _run(job: _Job, sequence: _Sequence, left_out: list[bool]) -> list[object]:
    outcomes: list[object] = []
    for (name, place), skip in zip(sequence, left_out, strict=True):
        try:
            outcomes.append(_REFUSED if skip else _OPERATIONS[name](job, job.parameters[place]))
        except RuntimeError as error:
            if not (name.endswith("outside") and "is sharded and not whole here" in str(error)):
                raise
            outcomes.append(_REFUSED)
    outcomes.append(loops.masters(job.net))
    job.engine.destroy()
    return outcomes


def _same(one: object, other: object) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other


def _differing(
    group: dist.ProcessGroup, sequence: _Sequence, stage: int, dtype: str, zero: _Settings, folder: str
) -> list[tuple[object, ...]]:
    """The operations whose outcomes differ between the stages; the last one stands for the masters at the end."""
    sharded = _run(_Job(stage, dtype, zero, folder), sequence, [False] * len(sequence))
    refused = [outcome is _REFUSED for outcome in sharded[:-1]]
    plain = _run(_Job(0, dtype, zero, folder), sequence, refused)
    names = [*sequence, ("masters", 0)]
    return [(*name, a, b) for name, a, b in zip(names, sharded, plain, strict=True) if not _same(a, b)]


_SEQUENCES = st.lists(st.tuples(st.sampled_from(sorted(_OPERATIONS)), st.integers(0, 3)), min_size=4, max_size=16)
_ZERO = st.fixed_dictionaries(
    {
        "stage3_param_persistence_threshold": st.sampled_from([0, 20]),
        "stage3_max_live_parameters": st.sampled_from([0, 10**9]),
        "offload_optimizer": st.sampled_from([{"device": "none"}, {"device": "cpu"}]),
    }
)
_STAGES = st.sampled_from([3, 3, 3, 2, 1])


@given(sequence=_SEQUENCES, stage=_STAGES, dtype=st.sampled_from(["fp32", "bf16", "fp16"]), zero=_ZERO)
def test_sequences(pool: Pool, sequence: _Sequence, stage: int, dtype: str, zero: _Settings) -> None:
    """Each outcome, and the masters at the end, are those of stage 0, bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        assert pool.run(_differing, sequence, stage, dtype, zero, folder) == [[]] * 4
