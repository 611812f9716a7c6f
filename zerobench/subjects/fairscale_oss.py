"""fairscale's OSS with ShardedDataParallel: optimizer states sharded, each gradient reduced to its owner (stage 2).

The package is not maintained any more; the extra ``[peers]`` installs its last release.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.extras import is_installed
from zerobench.oracles.optimizer import groups, read_state
from zerobench.oracles.rules import RULES, hyperparameters
from zerobench.scenario import Scenario
from zerobench.subject import Policies, State
from zerobench.subjects import client_settings, group_settings, plain_settings
from zerobench.subjects.plain import Plain, storages, summed, tensors_of
from zerobench.subjects.saving import load_own, save_own

_SOURCE = "https://github.com/facebookresearch/fairscale/blob/v0.4.13/fairscale/nn/data_parallel/sharded_ddp.py"


#: A way to save: every rank consolidates the whole state of the optimizer; otherwise the first one does.
ALL_RANKS = "state_dict(all_ranks=True)"
#: Settings: no buckets, and the usual broadcast of Python objects.
UNBUFFERED, OBJECTS = "reduce_buffer_size=0", "force_broadcast_object"
#: A setting: the client drops gradients by the optimizer, whose zero_grad sets them to None since torch 2.0.
NONE = "optimizer.zero_grad()"
#: Its default: each forward begins with the buffers of rank 0. The suite's usual one leaves each rank its own.
BUFFERS = "broadcast_buffers"


class FairscaleOss(Plain):
    """Whole parameters have owners: an owner has the reduced gradient and the states, and broadcasts the update."""

    name = "fairscale-oss"
    distribution = "fairscale"
    stages = (2,)
    #: clip_grad_norm adds over the default group, which in fairscale's design has the model-parallel ranks too.
    whole_world = True
    resumes = True
    evaluates_in_inference_mode = False  # the finding fairscale/inference-mode, which a setting draws
    loads_parts = True
    savings = (ALL_RANKS,)
    settings = (
        UNBUFFERED,
        OBJECTS,
        NONE,
        plain_settings.INFERENCE,
        BUFFERS,
        *plain_settings.FORMS,
        plain_settings.CLOSURE,
        *plain_settings.MOMENTS,
        *plain_settings.CODE,
        plain_settings.HOOKED_AFTER,
        *client_settings.CODE,
        client_settings.DIFFERENTIATED,
        client_settings.INPUTS,
        client_settings.STEPPED,
        *plain_settings.ADDITIONS,
        *group_settings.GROUPS,
    )
    takes_rank_0 = True  # ShardedDataParallel broadcasts the states of rank 0 when it is constructed
    takes_buffers_of_rank_0 = True
    #: Gradients are views of its buckets, which start each step as zeros. Parameters become views of flat buffers.
    #: "These buckets correspond to parameters which will not be sharded. Set to 0 to remove all bucketing":
    #: https://fairscale.readthedocs.io/en/stable/api/nn/sharded_ddp.html
    policies = Policies(inactive_gradient="zero", strides="contiguous", sharded_with=UNBUFFERED, buffers_with=BUFFERS)

    @classmethod
    def unsupported(cls, scenario: Scenario) -> str | None:
        if not is_installed("fairscale"):
            return "fairscale is not installed; pip install 'zerobench[peers]'"
        if scenario.dtype != "fp32":
            return f"OSS keeps no fp32 masters of a model in 16 bits: {_SOURCE}"
        if {scenario.communication_dtype, scenario.accumulator_dtype} - {None, "fp32"}:
            return f"ShardedDataParallel reduces and accumulates in fp32: {_SOURCE}"
        if scenario.reduction == "micro_step" and scenario.accumulation > 1:
            return f"ShardedDataParallel accumulates in no_sync only: {_SOURCE}"
        if {UNBUFFERED, NONE}.intersection(scenario.settings) and scenario.leaves_some_out:
            return f"without views of buckets a parameter that no leaf uses has no gradient, with them zeros: {_SOURCE}"
        if BUFFERS in scenario.settings and (reason := _unsupported_buffers(scenario)) is not None:
            return reason
        return super().unsupported(scenario)

    def _wrap(self) -> nn.Module:
        from fairscale.nn.data_parallel import ShardedDataParallel

        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.oss = self._sharded(trained)
        wrapped: nn.Module = ShardedDataParallel(
            self.model,
            self.oss,
            process_group=self.group,
            broadcast_buffers=BUFFERS in self.scenario.settings,
            warn_on_trainable_params_changed=False,
            **({"reduce_buffer_size": 0} if UNBUFFERED in self.scenario.settings else {}),
        )
        return wrapped

    def _sharded(self, trained: dict[str, nn.Parameter]) -> Any:
        with warnings.catch_warnings(action="ignore"):
            from fairscale.optim.oss import OSS

        spec = self.scenario.optimizer
        grouped = groups(spec, trained)
        oss = OSS(
            group_settings.with_others(plain_settings.first_groups(grouped, self.scenario), self.model, self.scenario),
            optim=RULES[spec.name].make,
            group=self.group,
            force_broadcast_object=OBJECTS in self.scenario.settings,
            **hyperparameters(spec),
            **plain_settings.form(self.scenario),
        )
        plain_settings.add_groups(oss, grouped, self.scenario)
        return oss

    def _optimizer(self) -> torch.optim.Optimizer:
        found: torch.optim.Optimizer = self.oss
        return found

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        no_sync: AbstractContextManager[None] = nullcontext() if needed else self.module.no_sync()  # type: ignore[operator]
        return no_sync

    def _clip(self) -> Tensor | None:
        if not self.scenario.clip:
            return None
        norm: Tensor = self.oss.clip_grad_norm(self.scenario.clip, float(self.scenario.norm_type))
        return norm

    def _zero_grad(self) -> None:
        if NONE in self.scenario.settings:
            self.oss.zero_grad()
        else:
            self.module.zero_grad(set_to_none=False)

    def gradients(self) -> State:
        """Each owner's gradient, sent to all ranks; the others have freed theirs."""
        return {name: each for name, p in self.working.items() if (each := self._gradient(p)) is not None}

    def _gradient(self, p: nn.Parameter) -> Tensor | None:
        [have] = summed(torch.tensor([float(p.grad is not None)]), self.group)
        owner = self.oss._param_to_rank[p] == dist.get_rank(self.group)
        mine = p.grad if owner and p.grad is not None else torch.zeros_like(p)
        whole = summed(mine, self.group)
        return whole if have else None

    def optimizer_state(self) -> dict[str, State]:
        """Each owner's state added to the others' zeros."""
        states = read_state(self.scenario.optimizer, self.oss.optim.state, self.masters)
        return {name: {key: summed(t, self.group) for key, t in state.items()} for name, state in states.items()}

    def resident(self) -> dict[str, Sequence[Tensor]]:
        """The states are those of the optimizer of the parameters that this rank owns."""
        return {**super().resident(), "optimizer": storages(tensors_of(self.oss.optim.state))}

    def save(self, directory: Path) -> None:
        """Each rank's model, as its buffers are its own, and the whole state of the optimizer."""
        if self.scenario.saving == ALL_RANKS:
            states = self.oss.state_dict(all_ranks=True)
        else:
            self.oss.consolidate_state_dict(recipient_rank=0)
            shared = [self.oss.state_dict() if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(shared, group=self.group)
            [states] = shared
        save_own({"model": self.model.state_dict(), "optimizer": states}, directory, self.group)

    def load(self, directory: Path) -> None:
        state = load_own(directory, self.group)
        self.model.load_state_dict(state["model"])
        if self.scenario.loads == "all":
            self.oss.load_state_dict(state["optimizer"])


def _unsupported_buffers(scenario: Scenario) -> str | None:
    """The reason against the buffers of rank 0, or None."""
    if not plain_settings.trains_otherwise(scenario.model):
        return None
    if scenario.forwards != "one":
        return f"{BUFFERS} changes buffers between the forwards of a backward: {_SOURCE}"
    if scenario.accumulation > 1:
        return f"{BUFFERS} does nothing in no_sync: https://github.com/facebookresearch/fairscale/issues/1041"
    return None
