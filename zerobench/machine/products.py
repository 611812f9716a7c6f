"""The same bits each time: of a CPU's matrix products wherever their operands lie, and of a step on a GPU."""

from __future__ import annotations

import os


def fix_products() -> None:
    """Let MKL's products in this process, and in those that it starts, not depend on the addresses of their operands.

    By default they may: on an AMD EPYC half of the fp32 products of small matrices have other bits if an operand's
    address is no multiple of 16, as in the middle of an engine's flat buffer. An oracle, whose tensors lie elsewhere,
    would then differ from a right engine. Call this before the first product; a value that the user has set stays.

    Source: oneMKL developer guide, "Conditional numerical reproducibility".
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")


def fix_gpu() -> None:
    """Give the same step the same bits each time on CUDA, which every comparison of bits assumes.

    By default attention's backward sums the query's gradient in the arrival order of its thread blocks. With errors,
    not with ``warn_only``, flash attention uses a fixed order, the memory-efficient kernel gives a head's keys to one
    block, cuDNN's is not used, and an operation raises if it has no fixed order; the models here have none of those.
    cuBLAS needs workspaces of a fixed size, set before it makes its first handle. No result depends on the contents of
    fresh memory, so filling it, which this mode would add, only takes time. All subjects and oracles compute so, and
    every time includes the cost.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
