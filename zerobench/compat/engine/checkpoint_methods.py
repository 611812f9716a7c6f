"""The engine's checkpoints and whole weights, by the names and arguments of DeepSpeed's engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from zerobench.compat.checkpoint.export import in_order_of, save_whole
from zerobench.compat.checkpoint.zero_to_fp32 import write_scripts
from zerobench.compat.engine.edits import Edits
from zerobench.compat.errors import MissingCheckpoint, SavingError, raised_as
from zerobench.compat.log import notice
from zerobench.compat.zero.gathered import GatheredParameters
from zerobench.engine import Engine
from zerobench.engine.checkpoint.rng import restore_rng, rng_states


class _Saved(Protocol):
    """The attributes of the engine that the mixed-in methods use."""

    module: nn.Module
    global_samples: int
    _engine: Engine
    _edits: Edits

    def train_batch_size(self) -> int: ...

    def zero_optimization_partition_weights(self) -> bool: ...

    def zero_gather_16bit_weights_on_model_save(self) -> bool: ...

    def _zero3_consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None: ...


@contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """Keep the states of the generators: DeepSpeed's load leaves them, so that what the script draws next is the same,
    such as the order of its samples."""
    before = rng_states(device)
    try:
        yield
    finally:
        restore_rng(before, device)


class CheckpointMethods:
    """Saving and loading; all but :meth:`module_state_dict` are collectives."""

    def save_checkpoint(
        self: _Saved,
        save_dir: str | Path,
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save a checkpoint; a collective. Rank 0 puts scripts that read its weights beside it.

        Raises:
            SavingError: the ranks give different arguments, or a file cannot be written; it is a CheckpointError.
        """
        if self._engine.accumulation.begun:
            notice("a checkpoint was saved within a step: the gradients of the step until then are not in it")
        self._edits.keep()
        with raised_as(SavingError):
            self._engine.save_checkpoint(save_dir, tag, client_state or {}, save_latest, exclude_frozen_parameters)
        if self._engine.ranks.rank == 0:
            write_scripts(Path(save_dir))
        return True

    def load_checkpoint(
        self: _Saved,
        load_dir: str | Path,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Load a checkpoint; a collective. Returns its path and the client's state; None twice if there is none.

        Raises:
            MissingCheckpoint: the checkpoint is missing or damaged; it is a CheckpointError.
            NotImplementedError: ``custom_load_fn`` is given.
        """
        if custom_load_fn is not None:
            raise NotImplementedError(
                f"load_checkpoint() takes no custom_load_fn, got {custom_load_fn}; read the weights by "
                "deepspeed.utils.zero_to_fp32 and load them into the model before initialize()"
            )
        micro_steps = self._engine.micro_steps
        parts = (load_module_strict, load_optimizer_states, load_lr_scheduler_states, load_module_only)
        with raised_as(MissingCheckpoint), _own_random_numbers(self._engine.device):
            path, state = self._engine.load_checkpoint(load_dir, tag, *parts)
        if path is None:
            return None, None
        self.global_samples = self._engine.global_steps * self.train_batch_size()
        self._engine.accumulation.recount(micro_steps)  # DeepSpeed does not save them, and ends steps by them
        return path, state

    def load_module_state_dict(
        self: _Saved,
        checkpoint: dict[str, Any],
        strict: bool = True,
        custom_load_fn: Any = None,
        fetch_z3_params: bool = False,
        z3_params_to_fetch: Any = None,
        allowed_missing_keys: Any = None,
    ) -> None:
        """Load whole weights from ``checkpoint["module"]``, at stage 3 those of rank 0; a collective.

        Raises:
            RuntimeError: names of parameters differ, other than the ``allowed_missing_keys``.
        """
        state, missing = checkpoint["module"], set(allowed_missing_keys or ())
        partitioned = self.module if self.zero_optimization_partition_weights() else ()
        with GatheredParameters(partitioned, modifier_rank=0):
            if custom_load_fn is not None:
                custom_load_fn(src=state, dst=self.module)
                return
            own = {name: value for name, value in self.module.state_dict().items() if name in missing - state.keys()}
            self.module.load_state_dict({**own, **state}, strict=strict)

    def save_16bit_model(
        self: _Saved,
        save_dir: str | Path,
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save the whole weights on rank 0; a collective.

        At stage 3 only if stage3_gather_16bit_weights_on_model_save is set; else False.
        """
        if self.zero_optimization_partition_weights() and not self.zero_gather_16bit_weights_on_model_save():
            return False
        save_whole(self._engine, Path(save_dir), save_filename, exclude_frozen=exclude_frozen_parameters)
        return True

    save_fp16_model = save_16bit_model

    def _zero3_consolidated_16bit_state_dict(
        self: _Saved, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None:
        """The whole weights on rank 0, in the order of the module's state dict, and None elsewhere; a collective."""
        state = self._engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        return None if state is None else in_order_of(self.module, state)

    def _consolidated_16bit_state_dict(
        self: _Saved, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None:
        """The same, of an engine whose weights are sharded."""
        if not self.zero_optimization_partition_weights():
            raise ValueError("_consolidated_16bit_state_dict() needs sharded weights, as at stage 3; use state_dict()")
        return self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)

    def module_state_dict(
        self: _Saved,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """The module's state dict; at stage 3 its values can be read only where they are gathered."""
        state: dict[str, Any] = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        for name, parameter in self.module.named_parameters():
            if exclude_frozen_parameters and not parameter.requires_grad:
                state.pop(name, None)
        return state
