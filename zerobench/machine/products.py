"""Matrix products with the same bits wherever their operands lie in memory."""

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
