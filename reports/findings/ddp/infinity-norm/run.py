"""clip_grad_norm_ with the infinity norm raises if a parameter has no element."""

from __future__ import annotations

import sys

import torch

#: The elements of the second parameter, and the norm's type; the last one raises.
CASES = ((1, "inf"), (0, "2.0"), (0, "inf"))


def norm(elements: int, kind: str) -> str:
    """The norm of two gradients, or the error; the first has the one element 2, the second none but zeros."""
    weights = [torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(elements))]
    (2 * weights[0].sum() + 0 * weights[1].sum()).backward()
    try:
        return str(float(torch.nn.utils.clip_grad_norm_(weights, 1.0, norm_type=float(kind))))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """1 if a norm is not 2."""
    wrong = 0
    for elements, kind in CASES:
        got = norm(elements, kind)
        print(f"second parameter of {elements} element(s), norm {kind}: expected 2.0, got {got}")
        wrong |= got != "2.0"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
