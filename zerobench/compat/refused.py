"""Names of DeepSpeed that need what the engine does not have; each refuses with its reason."""

from __future__ import annotations

from typing import Any, NoReturn

_SHARDS = "the engine shards data-parallel training over all ranks and has no other parallelism"
_NO_NORM = "it updates whole matrices, and the engine updates each element by itself; use AdamW"


def _refuse(name: str, reason: str) -> NoReturn:
    raise NotImplementedError(f"deepspeed.{name} is not offered: {reason}")


def tp_model_init(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse tensor parallelism."""
    _refuse("tp_model_init", _SHARDS)


def init_inference(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse DeepSpeed's inference engine."""
    _refuse("init_inference", "call deepspeed.initialize() without an optimizer to evaluate a sharded model")


class PipelineModule:
    """Refuses pipeline parallelism."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("pipe.PipelineModule", _SHARDS)


class PipelineEngine(PipelineModule):
    """Refuses pipeline parallelism; no engine is one."""


class LayerSpec(PipelineModule):
    """Refuses pipeline parallelism."""


class TiedLayerSpec(PipelineModule):
    """Refuses pipeline parallelism."""


class InferenceEngine:
    """Refuses DeepSpeed's inference engine; no engine is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        init_inference()


class MoE:
    """Refuses experts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("moe.layer.MoE", _SHARDS)


class DeepSpeedTransformerLayer:
    """Refuses DeepSpeed's kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("ops.transformer.DeepSpeedTransformerLayer", "use the layers of torch or of transformers")


class FusedLamb:
    """Refuses to be constructed: the engine has no Lamb."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(f"ops.lamb.{type(self).__name__}", _NO_NORM)


class DeepSpeedCPULamb(FusedLamb):
    """Refuses to be constructed."""


class MuonWithAuxAdam:
    """Refuses to be constructed: the engine has no Muon."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("runtime.zero.muon.MuonWithAuxAdam", _NO_NORM)


class UlyssesSPAttentionHF:
    """Refuses sequence parallelism."""

    @classmethod
    def register_with_transformers(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse sequence parallelism."""
        _refuse("runtime.sequence_parallel", _SHARDS)


class UlyssesSPDataLoaderAdapter:
    """Refuses sequence parallelism."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("runtime.sequence_parallel", _SHARDS)


def group_of_parallelism(name: str) -> Any:
    """A name of ``deepspeed.utils.groups`` other than data parallelism's."""

    def refusing(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"utils.groups.{name}", _SHARDS)

    return refusing
