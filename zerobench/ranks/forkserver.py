"""The fork server's last imports before it starts ranks, so that each rank starts in milliseconds.

torch loads its compiler and FSDP at their first use, and nearly every rank uses them. The objects alive by then are
frozen: no rank's garbage collector visits them, and their pages stay shared.
"""

import gc

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

gc.collect()
gc.freeze()
