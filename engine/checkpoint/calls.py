"""The engine's calls for checkpoints, with DeepSpeed's signatures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from zerobench.engine.checkpoint import loading, saving, whole
from zerobench.engine.checkpoint.background import PendingSave
from zerobench.engine.checkpoint.matching import Choice
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.errors import CheckpointError


class CheckpointCalls(Parts):
    """Saves and loads the training state; a base class of the engine."""

    #: Whether a save within a step saves the states without the step's gradients; if not, it is an error.
    saves_within_steps = False
    _pending_save: PendingSave | None = None
    _check_whole: Callable[[], None]
    keep_replaced: Callable[..., None]
    _to_its_end: Callable[[str], AbstractContextManager[None]]

    def save_checkpoint(
        self,
        save_dir: str | PathLike[str],
        tag: str | int | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save the training state of all ranks to the folder ``save_dir/tag``. A collective.

        The folder appears when it is complete and on the drive, and replaces an older one at once. Then the file
        ``latest`` names the tag. If the save fails or is killed, the older checkpoints stay as they were.

        Args:
            save_dir: a directory that all ranks share; made if it does not exist.
            tag: a file name; by default ``global_step{N}`` with the number of steps.
            client_state: returned by :meth:`load_checkpoint`; a dict of plain data, tensors, NumPy arrays and
                namespaces, nested in any way.
            save_latest: make it the checkpoint that is loaded by default.
            exclude_frozen_parameters: leave out the values of frozen parameters; a load then keeps those of the model.

        Returns:
            True, on every rank.

        Raises:
            CheckpointError: it could not be saved, or it was called between two micro-steps of a step.
        """
        chosen, client_state = self._begin_save(tag), client_state or {}
        frozen = not exclude_frozen_parameters
        saving.save(self, Path(save_dir), chosen, client_state, latest=save_latest, frozen=frozen)
        return True

    def async_save_checkpoint(
        self,
        save_dir: str | PathLike[str],
        tag: str | int | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> PendingSave:
        """Like :meth:`save_checkpoint`, but training stops only for a copy to host memory. A collective.

        A thread of each rank writes the copies, one shard of the training state. The checkpoint gets its name when all
        ranks call ``wait()`` of the returned object, or the next save or load, or ``destroy()``.

        Returns:
            The pending save; its ``wait()`` raises the error if it fails.
        """
        chosen, client_state = self._begin_save(tag), client_state or {}
        frozen = not exclude_frozen_parameters
        self._pending_save = saving.start(self, Path(save_dir), chosen, client_state, latest=save_latest, frozen=frozen)
        return self._pending_save

    def _begin_save(self, tag: str | int | None) -> str:
        """The checkpoint's tag, if one can be saved now; an earlier save is over then."""
        self._check_whole()
        self.keep_replaced(leave_converted=True)  # as by Module.half() for an export
        self._end_save()
        if self.accumulation.begun and not self.saves_within_steps:
            raise CheckpointError(
                "save_checkpoint() was called within a step, and a checkpoint holds no gradients; call it after the "
                "step() of an accumulation boundary"
            )
        return f"global_step{self.global_steps}" if tag is None else str(tag)

    def _end_save(self) -> None:
        """Wait for a save in the background, and raise its error."""
        pending, self._pending_save = self._pending_save, None
        if pending is not None:
            pending.wait()

    def load_checkpoint(
        self,
        load_dir: str | PathLike[str],
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[str | None, dict[str, Any]]:
        """Load a checkpoint that any number of ranks saved at any stage and offload. A collective.

        Training then continues with the same bits as without the interruption, if world size, accumulation and
        schedule are the same (docs/reference/checkpoints.md). Random number generators are set if the world size is
        the same. If the load raises a CheckpointError, the engine is unchanged.

        Args:
            load_dir: the directory of the checkpoints.
            tag: the checkpoint to load; by default the one that ``latest`` names.
            load_module_strict: the checkpoint must have the model's parameters and buffers, no more and no fewer.
            load_optimizer_states: load optimizer states, step counts, hyperparameters and the loss scaler.
            load_lr_scheduler_states: load the state of the schedule.
            load_module_only: load parameters and buffers only.

        Returns:
            The checkpoint's folder and its client state; (None, {}) if there is neither a tag nor a file ``latest``.

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or it does not fit the engine.
        """
        self._check_whole()
        self.keep_replaced()
        self._end_save()
        choice = Choice(
            strict=load_module_strict,
            optimizer=load_optimizer_states and not load_module_only,
            schedule=load_lr_scheduler_states and not load_module_only,
            module_only=load_module_only,
        )
        return loading.load(
            self,
            Path(load_dir),
            None if tag is None else str(tag),
            choice,
            lambda: self._to_its_end("load_checkpoint()"),
        )

    def save_16bit_model(
        self,
        save_dir: str | PathLike[str],
        save_filename: str = "model.safetensors",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Save the module's whole state dict, in the training dtype, to one safetensors file. A collective.

        Returns:
            True, on every rank.

        Raises:
            CheckpointError: the name does not end with .safetensors, or the file cannot be written.
        """
        self._check_whole()
        self.keep_replaced(leave_converted=True)
        whole.write(self, Path(save_dir, save_filename), frozen=not exclude_frozen_parameters)
        return True

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Tensor] | None:
        """The module's whole state dict on the CPU of rank 0, None on the others; at every stage. A collective."""
        self._check_whole()
        self.keep_replaced(leave_converted=True)
        return whole.state_dict(self, frozen=not exclude_frozen_parameters)
