"""The part of DeepSpeed's configuration that decides a checkpoint's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from zerobench.engine.config.schema import Fp16
from zerobench.engine.errors import CheckpointError

_SUB_GROUP_SIZE = 1_000_000_000  # DeepSpeed's default


@dataclass(frozen=True)
class Settings:
    """The layout for ``world`` ranks: the stage, the size of stage 3's sub-groups in elements, and the loss scale."""

    world: int
    stage: int
    sub_group_size: int
    clip: float
    bf16: bool
    fp16: Fp16
    config: dict[str, Any]

    @classmethod
    def of(cls, config: dict[str, Any], world: int) -> Settings:
        """The settings in a configuration of DeepSpeed's.

        Raises:
            CheckpointError: a value is not one of DeepSpeed's, or asks for a layout that is not written here.
        """
        zero = config.get("zero_optimization", {})
        stage = zero.get("stage", 0)
        if stage not in range(4) or world < 1:
            raise CheckpointError(f"expected a stage from 0 to 3 and at least 1 rank, got stage {stage!r} and {world}")
        for key in ("round_robin_gradients", "parameter_alignment", "elastic_checkpoint"):
            if zero.get(key):
                raise CheckpointError(f"zero_optimization.{key} changes DeepSpeed's layout, which is not written here")
        try:
            given = config.get("fp16", {})
            fp16 = Fp16.model_validate({key: given[key] for key in Fp16.model_fields if key in given})
        except ValidationError as error:
            raise CheckpointError(f"the section fp16 is wrong: {error.errors()[0]['msg']}") from None
        return cls(
            world=world,
            stage=stage,
            sub_group_size=int(zero.get("sub_group_size", _SUB_GROUP_SIZE)),
            clip=float(config.get("gradient_clipping", 0.0)),
            bf16=bool(config.get("bf16", {}).get("enabled")),
            fp16=fp16,
            config=config,
        )
