"""What the fork server does last before it starts ranks, so that each starts in milliseconds.

torch loads its compiler and FSDP at their first use, which nearly every rank makes. What is alive by then is frozen: no
rank's garbage collector walks through it, and its pages stay shared.
"""

import gc

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

gc.collect()
gc.freeze()
