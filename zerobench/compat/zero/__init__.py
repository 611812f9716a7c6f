"""``deepspeed.zero``: construction, gathering and reading of sharded parameters."""

from zerobench.compat.zero.gathered import GatheredParameters, register_external_parameter
from zerobench.compat.zero.init import Init, OnDevice
from zerobench.compat.zero.leaves import (
    get_z3_leaf_modules,
    set_z3_leaf_module,
    set_z3_leaf_modules,
    unset_z3_leaf_modules,
    z3_leaf_module,
)
from zerobench.compat.zero.status import ZeroParamStatus

__all__ = [
    "GatheredParameters",
    "Init",
    "OnDevice",
    "ZeroParamStatus",
    "get_z3_leaf_modules",
    "register_external_parameter",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
]
