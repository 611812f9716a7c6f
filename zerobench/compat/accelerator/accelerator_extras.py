"""Names of DeepSpeed's accelerators that few scripts use: streams, graphs, page-locked memory, operations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from zerobench.compat.accelerator import op_builders
from zerobench.compat.accelerator.host_memory import HostMemory


class AcceleratorExtras:
    """A part of :class:`~zerobench.compat.accelerator.accelerator.Accelerator`."""

    _name: str
    _host: HostMemory
    _compile_backend = "inductor"
    supports_nvtx_domain = False

    def resolves_data_dependency(self) -> bool:
        """Whether calls return after their work."""
        return self._name == "cpu"

    handles_memory_backpressure = resolves_data_dependency

    def default_stream(self, device_index: int | None = None) -> Any:
        """The GPU's first stream; None on a CPU."""
        return torch.cuda.default_stream(device_index) if self._name == "cuda" else None

    def is_current_stream_capturing(self) -> bool:
        """Whether a graph of the GPU is recorded."""
        return self._name == "cuda" and torch.cuda.is_current_stream_capturing()

    def create_graph(self) -> Any:
        """A graph of the GPU's work; None on a CPU."""
        return torch.cuda.CUDAGraph() if self._name == "cuda" else None

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """Record the work in the block; nothing on a CPU."""
        return torch.cuda.graph(graph, pool, stream) if self._name == "cuda" else nullcontext()

    def replay_graph(self, graph: Any) -> None:
        """Repeat the recorded work; nothing on a CPU."""
        if graph is not None:
            graph.replay()

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """The statistics of torch's allocator; on a CPU the memory of this process by two of their names."""
        if self._name == "cuda":
            return torch.cuda.memory_stats(device_index)
        return {
            "allocated_bytes.all.current": self._host.resident(),
            "allocated_bytes.all.peak": self._host.most_resident(),
        }

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Begin to measure the peak again."""
        torch.cuda.reset_peak_memory_stats(device_index) if self._name == "cuda" else self._host.reset()

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def pin_empty(self, *size: Any, **kwargs: Any) -> torch.Tensor:
        """``torch.empty`` in page-locked memory; on a CPU in any."""
        return torch.empty(*size, pin_memory=self._name == "cuda", **kwargs)

    def pin_empty_like(self, tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """``torch.empty_like`` in page-locked memory; on a CPU in any."""
        return torch.empty_like(tensor, device="cpu", pin_memory=self._name == "cuda", **kwargs)

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        """Do nothing: page-locked memory goes with its tensor."""

    def pin_memory_alignment(self) -> int:
        """1: there is no alignment to keep."""
        return 1

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """False: memory of the caller's own is not page-locked."""
        return False

    def unregister_host_memory(self, address: int) -> None:
        """Do nothing: none was registered."""

    def prefer_triton_grouped_mm(self) -> bool:
        """False: the engine has no grouped product of matrices."""
        return False

    def build_extension(self) -> Any:
        """torch's builder of extensions."""
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    def op_builder_dir(self) -> str:
        """The package of the builders of operations."""
        return "deepspeed.ops.op_builder"

    def get_op_builder(self, class_name: str) -> Any:
        """The builder of this name; no operation is compatible."""
        return getattr(op_builders, class_name, None)

    def create_op_builder(self, op_name: str) -> Any:
        """An object of the builder of this name; None if there is none."""
        builder = self.get_op_builder(op_name)
        return builder and builder()

    def export_envs(self) -> list[str]:
        """The variables that the launcher passes on besides its own: NCCL's on a GPU."""
        return ["NCCL"] if self._name == "cuda" else []

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """Choose devices in an environment."""
        current_env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, local_accelerator_ids))

    def get_compile_backend(self) -> str:
        """The backend for ``torch.compile``."""
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Set the backend for ``torch.compile``.

        Raises:
            ValueError: torch has no such backend.
        """
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(f"torch.compile has no backend {backend!r}; it has {', '.join(known)}")
        self._compile_backend = backend
