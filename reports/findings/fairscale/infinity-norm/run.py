"""fairscale OSS: clip_grad_norm with the infinity norm raises if a parameter has no element."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

#: The elements of the second parameter, and the norm's type; the last one raises.
CASES = ((1, "inf"), (0, "2.0"), (0, "inf"))


def norm(elements: int, kind: str) -> str:
    """The norm of two gradients, or the error; the first has the one element 2, the second none but zeros."""
    from fairscale.optim.oss import OSS

    weights = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(elements))]
    optimizer = OSS(weights, optim=torch.optim.SGD, lr=0.5)
    (2 * weights[0].sum() + 0 * weights[1].sum()).backward()
    try:
        return str(float(optimizer.clip_grad_norm(1.0, norm_type=float(kind))))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """1 if a norm is not 2."""
    warnings.simplefilter("ignore")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for elements, kind in CASES:
            got = norm(elements, kind)
            print(f"second parameter of {elements} element(s), norm {kind}: expected 2.0, got {got}")
            wrong |= got != "2.0"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
