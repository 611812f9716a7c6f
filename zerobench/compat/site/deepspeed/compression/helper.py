"""``deepspeed.compression.helper``, of zerobench: older names of those of ``deepspeed.utils.module_utils``."""

import warnings

from zerobench.compat.runtime_functions import recursive_getattr, recursive_setattr

warnings.warn(
    "deepspeed.compression.helper is deprecated; import recursive_getattr and recursive_setattr from "
    "deepspeed.utils.module_utils instead. See https://github.com/deepspeedai/DeepSpeed/issues/8489",
    FutureWarning,
    stacklevel=2,
)
