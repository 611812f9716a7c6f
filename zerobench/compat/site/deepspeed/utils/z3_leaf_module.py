"""``deepspeed.utils.z3_leaf_module``, of zerobench."""

from zerobench.compat.unoffered import names_of
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

__getattr__ = names_of(__name__)
