"""DeepSpeed's logger, by its name, so that callers set its level as they do with DeepSpeed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import torch.distributed as dist

logger = logging.getLogger("DeepSpeed")
if not logger.handlers:
    logger.setLevel(logging.INFO)
    logger.propagate = False
    _handler = logging.StreamHandler(sys.stdout)
    _handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
    logger.addHandler(_handler)


def log_dist(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Log on the given ranks; -1, or none given, stands for all of them."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    if not ranks or rank in ranks or -1 in ranks:
        logger.log(level, "[Rank %d] %s", rank, message)
