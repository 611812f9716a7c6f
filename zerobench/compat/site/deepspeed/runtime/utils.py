"""``deepspeed.runtime.utils``, of zerobench."""

from torch.nn.utils import clip_grad_norm_

from zerobench.compat.memory import see_memory_usage
from zerobench.compat.runtime_functions import (
    empty_cache,
    ensure_directory_exists,
    memory_status,
    move_to_device,
    noop_decorator,
    set_random_seed,
)
