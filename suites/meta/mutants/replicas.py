"""An engine of several meshes that is wrong on one of them; see plain.py.

Class of escape: a shape of the ranks that no draw has. A subject that offers plain and hybrid sharding got the former
alone; the subjects that offer the latter alone have names of their own.
"""

from __future__ import annotations

from math import sqrt

from torch import Tensor

from zerobench.subjects.torch_fsdp2 import TorchFsdp2
from zerobench.suites.meta.points import VALUES


class Fsdp2ClipsByTheNormOfAllReplicas(TorchFsdp2):
    """With replicas of the shards each of them counts in the norm by which a step clips; the client's is right."""

    points_at = VALUES
    rare = "replicas of the shards"

    def _clip(self) -> Tensor | None:
        usual = self.scenario
        self.scenario = usual.but(clip=usual.clip / sqrt(usual.replicate))
        norm = super()._clip()
        self.scenario = usual
        return norm


REPLICAS = [Fsdp2ClipsByTheNormOfAllReplicas]
