"""DeepSpeed with other settings of ZeRO; a known finding of DeepSpeed is theirs too."""

from __future__ import annotations

from typing import Any, ClassVar

from zerobench.subjects.deepspeed import DeepSpeed


class _DeepSpeedZero(DeepSpeed):
    """DeepSpeed with other settings of ZeRO than the default ones."""

    #: Of ``zero_optimization``, and of the whole configuration.
    zero_settings: ClassVar[dict[str, Any]] = {}
    whole_settings: ClassVar[dict[str, Any]] = {}

    def _config(self) -> dict[str, Any]:
        out = super()._config()
        return {**out, **self.whole_settings, "zero_optimization": {**out["zero_optimization"], **self.zero_settings}}


class DeepSpeedPredivide(_DeepSpeedZero):
    """Gradients are all-reduced, divided by two before that and by the rest after it."""

    name = "deepspeed-predivide"
    zero_settings: ClassVar[dict[str, Any]] = {"reduce_scatter": False}
    whole_settings: ClassVar[dict[str, Any]] = {"gradient_predivide_factor": 2.0}


class DeepSpeedRoundRobin(_DeepSpeedZero):
    """At stages 1 and 2 parameters alternate between the ranks' partitions."""

    name = "deepspeed-round-robin"
    zero_settings: ClassVar[dict[str, Any]] = {"round_robin_gradients": True}
