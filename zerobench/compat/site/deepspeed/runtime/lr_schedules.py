"""``deepspeed.runtime.lr_schedules``, of zerobench."""

from zerobench.compat.schedules import *
from zerobench.compat.schedules.tuning import add_tuning_arguments, get_config_from_args, get_lr_from_config
