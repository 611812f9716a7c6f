"""Whole values of the model, gathered unit by unit to rank 0: for files of weights and for other frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import buffer_aliases, buffers, replicated
from zerobench.engine.checkpoint.progress import aliases
from zerobench.engine.checkpoint.safetensors import Entry, write_file
from zerobench.engine.checkpoint.together import on_every_rank
from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.errors import CheckpointError
from zerobench.engine.state.unit import UnitState

_SUFFIX = ".safetensors"


def state_dict(parts: Parts, *, frozen: bool) -> dict[str, Tensor] | None:
    """The module's whole state dict in the training dtype, on the CPU of rank 0; None on the others. A collective.

    Tied parameters and buffers have all their names, of one tensor.
    """
    found = dict(_parameters(parts, frozen=frozen))
    if parts.ranks.rank:
        return None
    kept, others = buffers(parts.module), buffer_aliases(parts.module)
    found |= {name: each.detach().cpu().clone() for name, each in kept.items()}
    found |= {alias: found[name] for alias, name in aliases(parts.module).items() if name in found}
    names = [name for name, _ in parts.module.named_parameters(remove_duplicate=False)]
    return {name: found[name] for name in [*names, *kept, *others] if name in found}


def write(parts: Parts, path: Path, *, frozen: bool) -> None:
    """Write the module's whole weights to a safetensors file on rank 0. A collective.

    A tied parameter has one name in the file; the header's metadata has the others, as in safetensors' save_model.

    Raises:
        CheckpointError: the name does not end with .safetensors, or the file cannot be written.
    """
    if path.suffix != _SUFFIX:
        raise CheckpointError(
            f"{path.name!r} does not end with {_SUFFIX!r}, the only format of whole weights here: loading a pickle "
            "could run code"
        )
    values = state_dict(parts, frozen=frozen)
    on_every_rank(parts.ranks, lambda: None if values is None else _write(path, values, aliases(parts.module)))


def _write(path: Path, values: dict[str, Tensor], others: dict[str, str]) -> None:
    kept = {name: each for name, each in values.items() if name not in others}
    ordered = sorted(kept, key=lambda name: -kept[name].dtype.itemsize)
    entries = [Entry(name, tuple(kept[name].shape), kept[name].dtype) for name in ordered]
    write_file(path, entries, (kept[name] for name in ordered), others)


def _parameters(parts: Parts, *, frozen: bool) -> Iterator[tuple[str, Tensor]]:
    """The whole parameters, as copies on rank 0 and as views on the others, unit by unit."""
    first = parts.ranks.rank == 0
    for state in parts.states:
        if state.unit.trainable or frozen:
            whole = _whole(parts, state)
            for slot in state.unit.slots:
                yield slot.name, slot.view(whole).detach().cpu().clone() if first else whole
    for name, parameter in replicated(parts).items() if frozen else ():
        yield name, parameter.detach().cpu().clone() if first else parameter


def _whole(parts: Parts, state: UnitState) -> Tensor:
    """The unit's parameters, [unit.padded]; its own memory if every rank keeps them, else gathered from the owners."""
    if not state.sharded:
        return state.full
    own = state.parameter_store.load()
    whole = own.new_empty(state.unit.padded)
    for work in gather_shards(
        state.unit, whole, own, parts.ranks, parts.config.zero_optimization.allgather_bucket_size
    ):
        work.wait()
    return whole
