"""``deepspeed.zero``: construction, gathering and reading of sharded parameters."""

from zerobench.compat.zero.gathered import GatheredParameters, register_external_parameter, unwrap_model_for_generation
from zerobench.compat.zero.init import Init, OnDevice
from zerobench.compat.zero.leaves import (
    get_z3_leaf_modules,
    set_z3_leaf_module,
    set_z3_leaf_modules,
    set_z3_leaf_modules_by_name,
    set_z3_leaf_modules_by_suffix,
    unset_z3_leaf_modules,
    z3_leaf_module,
    z3_leaf_parameter,
)
from zerobench.compat.zero.status import ZeroParamStatus, ZeroStageEnum
from zerobench.compat.zero.tiling import TiledLinear, TiledLinearReturnBias

__all__ = [
    "GatheredParameters",
    "Init",
    "OnDevice",
    "TiledLinear",
    "TiledLinearReturnBias",
    "ZeroParamStatus",
    "ZeroStageEnum",
    "get_z3_leaf_modules",
    "register_external_parameter",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "unwrap_model_for_generation",
    "z3_leaf_module",
    "z3_leaf_parameter",
]
