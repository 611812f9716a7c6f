"""``see_memory_usage``: the memory of this process."""

from __future__ import annotations

import resource

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.activation_checkpointing.checkpointing import most_saved_bytes, saved_bytes
from zerobench.compat.log import print_dist


def see_memory_usage(message: str, force: bool = False, ranks: tuple[int, ...] = (0,)) -> None:
    """Print the device's memory and the peak of this process, if ``force`` is set."""
    if not force:
        return
    accelerator = get_accelerator()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    used, used_peak = accelerator.memory_allocated(), accelerator.max_memory_allocated()
    now, peaks = saved_bytes(), most_saved_bytes()
    kept = ", ".join(f"{now.get(place, 0):,} B, peak {most:,} B on the {place}" for place, most in peaks.items())
    line = f"{message} | device: {used:,} B, peak {used_peak:,} B | host: peak {peak:,} B"
    print_dist(f"{line} | inputs of checkpoints: {kept or 'none'}", ranks=list(ranks))
