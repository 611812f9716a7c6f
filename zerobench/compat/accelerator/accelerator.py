"""``get_accelerator()``: the device of this rank, with the names that DeepSpeed's callers use."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from zerobench.compat.accelerator.accelerator_extras import AcceleratorExtras
from zerobench.compat.accelerator.host_memory import HostMemory


class Accelerator(AcceleratorExtras):
    """The CPU or a CUDA GPU; every name that is not here is that of ``torch.cpu`` or ``torch.cuda``.

    Args:
        kind: ``cpu`` or ``cuda``.
    """

    def __init__(self, kind: str) -> None:
        self._name, self._host = kind, HostMemory()
        self._communication_backend_name = "nccl" if kind == "cuda" else "gloo"

    def device_name(self, device_index: int | None = None) -> str:
        """The device as torch writes it; ``cuda:1``, or ``cpu``."""
        return self._name if device_index is None or self._name == "cpu" else f"{self._name}:{device_index}"

    def current_device_name(self) -> str:
        """The device of this rank."""
        return self.device_name(self.current_device() if self._name == "cuda" else None)

    def device(self, device_index: int | None = None) -> Any:
        """A context with this device as the current one."""
        return torch.device(self.device_name(device_index))

    def current_device(self) -> Any:
        """The index of the current GPU; on a CPU the local rank, as in DeepSpeed."""
        return torch.cuda.current_device() if self._name == "cuda" else int(os.environ.get("LOCAL_RANK", "0"))

    def device_count(self) -> int:
        """The number of GPUs; on a CPU the ranks of this host."""
        return torch.cuda.device_count() if self._name == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def set_device(self, device_index: int) -> None:
        """Make a GPU the current one."""
        if self._name == "cuda":
            torch.cuda.set_device(device_index)

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed for this device."""
        return self._communication_backend_name

    def is_available(self) -> bool:
        """True: the device has been chosen because it is there."""
        return True

    def is_synchronized_device(self) -> bool:
        """Whether calls return after their work."""
        return self._name == "cpu"

    def is_bf16_supported(self) -> bool:
        """Whether the device computes in bf16."""
        return self._name == "cpu" or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        """Whether the device computes in fp16."""
        return True

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies on this kind of device."""
        return tensor.device.type == self._name

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        """The tensor in page-locked memory; on a CPU the tensor itself."""
        return tensor.pin_memory() if self._name == "cuda" else tensor

    def is_fp64_supported(self) -> bool:
        """Whether the device computes in fp64."""
        return True

    def is_triton_supported(self) -> bool:
        """Whether kernels of Triton run."""
        return self._name == "cuda"

    def use_host_timers(self) -> bool:
        """Whether the host's clock measures the device's work."""
        return self._name == "cpu"

    def supported_dtypes(self) -> list[torch.dtype]:
        """The dtypes of training."""
        return [torch.float, torch.half, torch.bfloat16]

    def random(self) -> Any:
        """torch's random module."""
        return torch.random

    def manual_seed(self, seed: int) -> None:
        """Seed the device's generator."""
        torch.cuda.manual_seed(seed) if self._name == "cuda" else torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the device's generators."""
        torch.cuda.manual_seed_all(seed) if self._name == "cuda" else torch.manual_seed(seed)

    def initial_seed(self) -> int:
        """The seed of the device's generator."""
        return torch.cuda.initial_seed() if self._name == "cuda" else torch.initial_seed()

    def default_generator(self, device_index: int) -> torch.Generator:
        """The device's generator."""
        return torch.cuda.default_generators[device_index] if self._name == "cuda" else torch.default_generator

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """The state of the device's generator."""
        if self._name == "cpu":
            return torch.get_rng_state()
        return torch.cuda.get_rng_state("cuda" if device_index is None else device_index)

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Set the state of the device's generator."""
        if self._name == "cpu":
            torch.set_rng_state(new_state)
        else:
            torch.cuda.set_rng_state(new_state, "cuda" if device_index is None else device_index)

    def range_push(self, msg: str) -> None:
        """Begin a range of a profile."""
        if self._name == "cuda":
            torch.cuda.nvtx.range_push(msg)  # type: ignore[no-untyped-call]

    def range_pop(self) -> None:
        """End a range of a profile."""
        if self._name == "cuda":
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def lazy_call(self, callback: Any) -> Any:
        """Call it when the device is ready, which it is."""
        return callback()

    def amp(self) -> Any:
        """torch's module of autocast for the device."""
        return torch.cuda.amp if self._name == "cuda" else torch.cpu.amp

    def empty_cache(self) -> None:
        """Give cached memory back."""
        if self._name == "cuda":
            torch.cuda.empty_cache()

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait for the device."""
        if self._name == "cuda":
            torch.cuda.synchronize(device_index)

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes of tensors on the GPU; on a CPU those of this process."""
        return torch.cuda.memory_allocated(device_index) if self._name == "cuda" else self._host.resident()

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The most bytes of tensors on the GPU; on a CPU the most of this process that a call has seen."""
        return torch.cuda.max_memory_allocated(device_index) if self._name == "cuda" else self._host.most_resident()

    def memory_reserved(self, device_index: int | None = None) -> int:
        """Bytes that torch's allocator has; on a CPU those of this process."""
        return torch.cuda.memory_reserved(device_index) if self._name == "cuda" else self._host.resident()

    memory_cached = memory_reserved

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """The most bytes that torch's allocator had; on a CPU the most of this process that a call has seen."""
        return torch.cuda.max_memory_reserved(device_index) if self._name == "cuda" else self._host.most_resident()

    max_memory_cached = max_memory_reserved

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of the device's memory; on a CPU the host's."""
        return self._memory(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of it that are free."""
        return self._memory(device_index)[0]

    def _memory(self, device_index: int | None) -> tuple[int, int]:
        if self._name == "cuda":
            return torch.cuda.mem_get_info(device_index)
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    def visible_devices_envs(self) -> list[str]:
        """The variables that choose devices."""
        return ["CUDA_VISIBLE_DEVICES"]

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in page-locked memory."""
        return self._name == "cuda" and tensor.is_pinned()

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Tensor"):
            return getattr(torch.cuda if self._name == "cuda" else torch, name)
        return getattr(torch.cuda if self._name == "cuda" else torch.cpu, name)


@functools.cache
def get_accelerator() -> Accelerator:
    """The accelerator of this process: CUDA if there is a GPU, unless ``DS_ACCELERATOR`` says ``cpu``."""
    asked = os.environ.get("DS_ACCELERATOR")
    if asked not in (None, "cpu", "cuda"):
        raise ValueError(f"DS_ACCELERATOR is {asked!r}, and the engine trains on cpu or cuda")
    return Accelerator(asked or ("cuda" if torch.cuda.is_available() else "cpu"))


def set_accelerator(accel_obj: Any) -> None:
    """Take the accelerator of this process, which is the one that there is.

    Raises:
        NotImplementedError: it is another one.
    """
    if accel_obj is not get_accelerator():
        raise NotImplementedError(
            f"set_accelerator() takes get_accelerator() alone, got {accel_obj!r}: the engine trains on the CPU or on "
            "CUDA; choose by the variable DS_ACCELERATOR"
        )


def is_current_accelerator_supported() -> bool:
    """True: the engine trains on each device that :func:`get_accelerator` gives."""
    return True


def local_device() -> torch.device:
    """The device that this rank trains on."""
    accelerator = get_accelerator()
    return torch.device(accelerator.device_name(int(os.environ.get("LOCAL_RANK", "0"))))
