"""``offload_optimizer`` and ``offload_param``: DeepSpeed's keys for the medium of the owners' states."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from zerobench.engine.section import Section

#: Keys that have an effect only if states are kept in files.
_OF_FILES = {"nvme_path", "buffer_count", "buffer_size", "pipeline_read", "pipeline_write", "max_in_cpu"}


class Offload(Section):
    """The keys common to ``offload_optimizer`` and ``offload_param``; sizes are in elements.

    ``buffer_count`` buffers of ``buffer_size`` elements bound the host memory for transfers to and from files; reads
    ahead and pending writes share them.
    """

    device: Literal["none", "cpu", "nvme"] = "none"
    pin_memory: bool = True
    nvme_path: Path | None = None
    buffer_count: int = Field(default=4, gt=0)
    buffer_size: int = Field(default=100_000_000, gt=0)

    @model_validator(mode="after")
    def _keys_fit_device(self) -> Self:
        if self.device == "nvme" and self.nvme_path is None:
            raise ValueError("device 'nvme' needs nvme_path, the directory on the drive to use")
        idle = sorted((self.model_fields_set & _OF_FILES) if self.device == "cpu" else ())
        if idle:
            raise ValueError(f"device 'cpu' has no use for {', '.join(idle)}; take out, or choose device 'nvme'")
        return self


class OffloadOptimizer(Offload):
    """The medium of gradient sums, masters and optimizer states; ``buffer_size`` is this engine's own key here.

    ``ratio`` is the offloaded share of the owned elements: whole units, starting with the model's first.
    """

    pipeline_read: bool = False
    pipeline_write: bool = False
    ratio: float = Field(default=1.0, ge=0.0, le=1.0)


class OffloadParam(Offload):
    """The medium of parameter shards; with nvme the first ``max_in_cpu`` elements stay in host memory."""

    buffer_count: int = Field(default=5, gt=0)
    max_in_cpu: int = Field(default=1_000_000_000, ge=0)
