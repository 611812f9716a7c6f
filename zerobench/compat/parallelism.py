"""The parallelism of DeepSpeed's engine: data parallelism over all ranks, and no other."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.engine import Engine
from zerobench.engine.errors import ConfigError


def refuse_parallelism(**given: Any) -> None:
    """Refuse arguments that describe another parallelism.

    Raises:
        ConfigError: one of them is not None.
    """
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is refused: the engine shards over all ranks and has no other parallelism")


class Parallelism:
    """Groups, ranks and sizes; the names are DeepSpeed's."""

    _engine: Engine
    mpu = mesh_device = None
    has_moe_layers = pipeline_parallelism = False
    sequence_parallel_size = mp_world_size = 1

    @property
    def data_parallel_group(self) -> Any:
        """All ranks."""
        return dist.group.WORLD

    seq_data_parallel_group = data_parallel_group

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._engine.ranks.world

    dp_world_size = seq_dp_world_size = world_size

    @property
    def global_rank(self) -> int:
        """This process among all."""
        return self._engine.ranks.rank

    @property
    def dist_backend(self) -> str:
        """The backend of the device's collectives."""
        return str(get_accelerator().communication_backend_name())

    @property
    def num_experts(self) -> list[int]:
        """None."""
        return []

    moe_layers = num_experts

    def get_data_parallel_rank(self) -> int:
        """This process among all."""
        return self._engine.ranks.rank

    def get_model_parallel_rank(self) -> int:
        """0: there is no model parallelism."""
        return 0

    get_tensor_parallel_rank = get_model_parallel_rank

    def get_sequence_parallel_group(self) -> None:
        """None: there is no sequence parallelism."""

    seq_parallel_group = None
