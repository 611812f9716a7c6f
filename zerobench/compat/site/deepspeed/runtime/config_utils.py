"""``deepspeed.runtime.config_utils``, of zerobench."""

from zerobench.compat.runtime.config_functions import (
    DeepSpeedConfigModel,
    DeepSpeedConfigObject,
    ScientificNotationEncoder,
    dict_raise_error_on_duplicate_keys,
    get_config_default,
    get_dict_param,
    get_list_param,
    get_scalar_param,
    pp_int,
)
