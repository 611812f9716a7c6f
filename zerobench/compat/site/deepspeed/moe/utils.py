"""``deepspeed.moe.utils``, of zerobench."""

from typing import Any


def is_moe_param(param: Any) -> bool:
    return False
