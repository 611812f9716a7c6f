"""The end of a step and its number of micro-steps, by the names of DeepSpeed's engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

from zerobench.compat.engine.accessors import ConfigAccessors
from zerobench.compat.errors import CallError


class AccumulationMethods(ConfigAccessors):
    """Declarations of the boundary, and changes of the batch."""

    #: The block that runs, by its name.
    _block: str | None = None
    #: Whether the next step ends a block of coalesce_grad_reduction().
    _coalesced = False
    #: False if the caller calls allreduce_gradients() before each step.
    enable_backward_allreduce = True
    _allreduced = False

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Declare that the next backward is the last one of its step, or is not."""
        self._engine.set_gradient_accumulation_boundary(is_boundary)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next ``step()`` updates."""
        return self._engine.is_gradient_accumulation_boundary()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in the block are not the last ones of their step."""
        if self.zero_optimization_partition_gradients():
            raise CallError(f"no_sync() keeps whole gradients, and stage {self.zero_optimization_stage()} shards them")
        with self._within("no_sync()"):
            yield
        self._engine.set_gradient_accumulation_boundary(None)

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """All backwards in the block belong to one step, which the ``step()`` after the block ends.

        Gradients are reduced at each backward all the same, so that the ranks keep shards of them only.
        """
        with self._within("coalesce_grad_reduction()"):
            yield
        self._engine.set_gradient_accumulation_boundary(True)
        self._coalesced = True

    @contextmanager
    def _within(self, block: str) -> Iterator[None]:
        if self._block is not None:
            raise CallError(f"{block} is inside {self._block}; end that block first")
        self._engine.set_gradient_accumulation_boundary(False)
        self._block = block
        try:
            yield
        except BaseException:
            self._engine.set_gradient_accumulation_boundary(None)
            raise
        finally:
            self._block = None

    @property
    def inside_no_sync_ctxt(self) -> bool:
        """Whether a block of no_sync() runs."""
        return self._block == "no_sync()"

    def allreduce_gradients(self, bucket_size: int = 500_000_000) -> None:
        """Do nothing: each backward has reduced its gradients."""
        self._allreduced = True

    def _check_step(self) -> None:
        if self._block is not None:
            raise CallError(f"step() was called inside {self._block}; call it after the block")
        if not (self.enable_backward_allreduce or self._allreduced) and self.is_gradient_accumulation_boundary():
            raise RuntimeError(
                "enable_backward_allreduce is False, and the step has no allreduce_gradients(); call it before step(): "
                "the engine cannot train each rank alone"
            )
        self._allreduced = False

    def _end_coalesced(self) -> None:
        """Count micro-steps again after the step of a block."""
        if self._coalesced:
            self._engine.set_gradient_accumulation_boundary(None)
            self._coalesced = False

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Change the micro-steps of a step so that a step has this many samples.

        Raises:
            ValueError: the samples are no multiple of those of one micro-step.
            RuntimeError: a step has begun, or offload keeps no sum of gradients between micro-steps.
        """
        once = self._micro_batch * self._engine.ranks.world
        if not isinstance(train_batch_size, Integral) or train_batch_size % once or train_batch_size <= 0:
            raise ValueError(f"train_batch_size {train_batch_size!r} is no multiple of {once}, a micro-step's samples")
        steps = train_batch_size // once
        if steps > 1 and not self._engine.stores.keeps_sums:
            raise RuntimeError(
                f"set_train_batch_size({train_batch_size}) makes {steps} micro-steps, but the engine began with "
                "gradient_accumulation_steps 1, with which offload_optimizer keeps no sum of gradients between "
                "micro-steps; begin with gradient_accumulation_steps of 2 or more, and set a smaller batch before the "
                "first step"
            )
        self._engine.accumulation.change(steps)

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Change the samples of one micro-step; the caller gives batches of this size.

        Raises:
            ValueError: it is no whole number of at least 1.
        """
        if not isinstance(micro_batch_size, Integral) or micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be a whole number of at least 1, got {micro_batch_size!r}")
        self._micro_batch = micro_batch_size
