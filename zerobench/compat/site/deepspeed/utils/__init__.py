"""``deepspeed.utils``, of zerobench."""

from torch.distributed import is_initialized

from deepspeed.utils import (
    groups,
    init_on_device,
    logging,
    module_utils,
    nvtx,
    tensor_fragment,
    timer,
    zero_to_fp32,
    zero_to_torch,
)
from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.comm import comm as dist
from zerobench.compat.comm.comm import *
from zerobench.compat.comm.groups import *
from zerobench.compat.log import log_dist, log_dist_once, logger, set_log_level_from_string
from zerobench.compat.runtime.loader import RepeatingLoader
from zerobench.compat.runtime.runtime_functions import noop_decorator as instrument_w_nvtx
from zerobench.compat.runtime.runtime_functions import recursive_getattr, recursive_setattr
from zerobench.compat.zero import (
    OnDevice,
    get_z3_leaf_modules,
    set_z3_leaf_module,
    set_z3_leaf_modules,
    set_z3_leaf_modules_by_name,
    set_z3_leaf_modules_by_suffix,
    unset_z3_leaf_modules,
    z3_leaf_module,
    z3_leaf_parameter,
)
from zerobench.compat.zero.states import *
