"""torch's ``replicate`` on each block and the root: data parallelism by the code of FSDP2, stage 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch.distributed._composable.replicate_with_fsdp import replicate

from zerobench.subject import Theory
from zerobench.subjects import fsdp2_settings
from zerobench.subjects.device_mesh import fsdp_mesh
from zerobench.subjects.torch_fsdp2 import TorchFsdp2


class TorchReplicate(TorchFsdp2):
    """Every rank keeps all parameters, as fp32 masters; a unit's are cast before its forward, and its gradients are
    all-reduced after its backward. torchtitan trains so without shards."""

    name = "torch-replicate"
    stages: ClassVar[tuple[int, ...]] = (0,)
    hybrid = False
    settings = tuple(name for name in TorchFsdp2.settings if name not in fsdp2_settings.OF_SHARDS)

    @classmethod
    def theory(cls) -> Theory:
        return Theory()

    def _unit(self) -> Callable[..., Any]:
        return partial(
            replicate,
            mesh=fsdp_mesh(self.group, self.scenario),
            offload_policy=self._offload(),
            **fsdp2_settings.ignored(self.model, self.scenario),
        )

    def _kept(self) -> dict[str, Any]:
        return {}
