"""``deepspeed.compression.helper``, of zerobench: older names of those of ``deepspeed.utils.module_utils``.

DeepSpeed warns when the module is imported. Here ``import deepspeed`` imports every module, so the warning comes with
the first use of a name.
"""

import warnings
from typing import Any

from zerobench.compat.runtime import runtime_functions
from zerobench.compat.unoffered import names_of

__all__ = ["recursive_getattr", "recursive_setattr"]  # noqa: F822 - __getattr__ has them

_other = names_of(__name__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return _other(name)
    warnings.warn(
        "deepspeed.compression.helper is deprecated; import recursive_getattr and recursive_setattr from "
        "deepspeed.utils.module_utils instead. See https://github.com/deepspeedai/DeepSpeed/issues/8489",
        FutureWarning,
        stacklevel=2,
    )
    return getattr(runtime_functions, name)
