"""``deepspeed.utils``, of zerobench."""

from torch.distributed import is_initialized

from deepspeed.utils import groups, logging
from zerobench.compat import comm as dist
from zerobench.compat.comm import *
from zerobench.compat.loader import RepeatingLoader
from zerobench.compat.log import log_dist, logger
from zerobench.compat.states import *
from zerobench.compat.zero import OnDevice, set_z3_leaf_modules, unset_z3_leaf_modules
