"""Random numbers of checkpoints: the states at the forward, and DeepSpeed's tracker of named states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.log import logger

_MODEL_PARALLEL = "model-parallel-rng"


class CudaRNGStatesTracker:
    """Generator states by name; inside :meth:`fork` the device draws from one of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self.states_: dict[str, Tensor] = {}
        self.seeds_: set[int] = set()

    def get_states(self) -> dict[str, Tensor]:
        """A copy of the table."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        """Replace the table."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Add a state that begins with this seed.

        Raises:
            ValueError: the seed or the name is in use.
        """
        if seed in self.seeds_ or name in self.states_:
            raise ValueError(f"the tracker has the seed {seed} or the name {name!r} already; give others")
        accelerator = get_accelerator()
        before = accelerator.get_rng_state()
        accelerator.manual_seed(seed)
        self.seeds_.add(seed)
        self.states_[name] = accelerator.get_rng_state()
        accelerator.set_rng_state(before)

    @contextlib.contextmanager
    def fork(self, name: str = _MODEL_PARALLEL) -> Iterator[None]:
        """Draw from the named state in the block, and go on with it in the next one.

        Raises:
            ValueError: there is no such state.
        """
        if name not in self.states_:
            raise ValueError(f"the tracker has no state {name!r}; add it first, with a seed")
        accelerator = get_accelerator()
        before = accelerator.get_rng_state()
        accelerator.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = accelerator.get_rng_state()
            accelerator.set_rng_state(before)


_tracker = CudaRNGStatesTracker()


def get_cuda_rng_tracker() -> CudaRNGStatesTracker:
    """The tracker of this process."""
    return _tracker


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seed the device, and the tracker's state of model parallelism, which has one rank: with DeepSpeed's offset."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        logger.info("data parallel seed: %d, model parallel seed: %d", seed, seed + 2718)
    _tracker.reset()
    get_accelerator().manual_seed(seed)
    _tracker.add(_MODEL_PARALLEL, seed + 2718)


def model_parallel_reconfigure_tp_seed(seed: int) -> None:
    """Seed the tracker's state of model parallelism again."""
    with _tracker.fork():
        get_accelerator().manual_seed(seed + 2718)


class RandomStates:
    """The states of all generators at one moment."""

    def __init__(self) -> None:
        self._host, self._device = torch.get_rng_state(), get_accelerator().get_rng_state()
        self._tracked = _tracker.get_states()

    def _set(self) -> None:
        torch.set_rng_state(self._host)
        get_accelerator().set_rng_state(self._device)
        _tracker.set_states(dict(self._tracked))

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Have these states in the block, and those of now after it."""
        after = RandomStates()
        self._set()
        try:
            yield
        finally:
            after._set()
