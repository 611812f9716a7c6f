"""Checks of the arguments of initialize: refused if they cannot be trained, or if they differ between ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.config.schema import DTYPES, Config
from zerobench.engine.errors import ConfigError, RankMismatch
from zerobench.engine.optim.optimizer import ZeroOptimizer

# A directory may have a different name on each rank.
_EACH_RANKS_OWN = {"offload_optimizer": {"nvme_path"}, "offload_param": {"nvme_path"}}


def check_dtypes(model: nn.Module) -> None:
    """Refuse parameters that would lose precision or an imaginary part in the engine.

    Raises:
        ConfigError: a parameter trains in a dtype other than the engine's three.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in DTYPES.values():
            raise ConfigError(
                f"parameter {name!r} trains and is {parameter.dtype}, not float32, bfloat16 or float16; convert it "
                "(a complex one to real pairs, for torch.view_as_complex), or set requires_grad_(False)"
            )


def check_values(model: nn.Module) -> None:
    """Refuse a model that is not, or not all, in memory.

    Raises:
        ConfigError: a parameter or buffer is on the meta device, or a lazy layer has no shape yet.
    """
    for what, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if is_lazy(tensor):
                raise ConfigError(
                    f"{what} {name!r} has no shape yet, as of torch.nn.LazyLinear; run one forward of the model first, "
                    "with the same random seed on every rank"
                )
            if tensor.is_meta:
                raise ConfigError(
                    f"{what} {name!r} is on the meta device and has no values; load or initialise the model first, on "
                    "every rank, or construct it shard by shard: deepspeed.zero.Init"
                )


def check_gathers(model: nn.Module) -> None:
    """Refuse modules whose use of their parameters stage 3 cannot see.

    Raises:
        ConfigError: a module is compiled by TorchScript and has parameters.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and next(module.parameters(), None) is not None:
            raise ConfigError(
                f"module {name!r} is a torch.jit.ScriptModule, which takes no hooks, so stage 3 cannot gather its "
                "parameters; give the module without torch.jit.script, or use stage 2"
            )


def check_same(module: nn.Module, optimizer: ZeroOptimizer, config: Config, ranks: Ranks) -> None:
    """Refuse differences between ranks, before they can make a collective hang. A collective.

    Raises:
        RankMismatch: models, parameter groups or configurations differ; the message names the first difference.
    """
    given = {
        "model": "\n".join(_model(module, optimizer)),
        "optimizer": "\n".join(_rules(optimizer)),
        "config": config.model_dump_json(exclude={"zero_optimization": _EACH_RANKS_OWN}),
    }
    for what, own in given.items():
        digests = ranks.same_everywhere(hashlib.sha256(own.encode()).hexdigest())
        if len(set(digests)) == 1:
            continue
        texts = ranks.same_everywhere(own)
        rank = next(r for r, digest in enumerate(digests) if digest != digests[0])
        raise RankMismatch(f"rank {rank} was given another {what} than rank 0: {_difference(texts[0], texts[rank])}")


def _model(module: nn.Module, optimizer: ZeroOptimizer) -> Iterator[str]:
    """A line for each parameter and buffer."""
    groups = {p: index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
    for name, p in module.named_parameters():
        trains = p.requires_grad and p in groups
        yield f"{name} {tuple(p.shape)} {p.dtype} {f'trains in group {groups[p]}' if trains else 'frozen'}"
    for name, buffer in module.named_buffers():
        yield f"{name} {tuple(buffer.shape)} {buffer.dtype} buffer"


def _rules(optimizer: ZeroOptimizer) -> Iterator[str]:
    """A line for each group: the hyperparameters of its first step."""
    for group in range(len(optimizer.param_groups) if optimizer.trains else 0):
        yield str(optimizer.values(group, 1))


def _difference(first: str, other: str) -> str:
    """The first difference between two descriptions."""
    split = "\n" if "\n" in first + other else ","
    a, b = first.split(split), other.split(split)
    for left, right in zip(a, b, strict=False):
        if left != right:
            return f"{right!r} instead of {left!r}"
    return f"{len(b)} entries instead of {len(a)}"
