"""Parts: the attributes of an engine that a checkpoint reads and writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zerobench.engine.accumulation import Accumulation
from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.config.schema import Config
from zerobench.engine.optim.loss_scaler import LossScaler
from zerobench.engine.optim.optimizer import ZeroOptimizer
from zerobench.engine.optim.step import Stepper
from zerobench.engine.read_cache import ReadCache
from zerobench.engine.stage3.unshard import Unsharder
from zerobench.engine.state.assignment import StoreAssignment
from zerobench.engine.state.unit import UnitState


class Parts:
    """The base class of the engine: its parts by name. Counters are in optimizer steps and micro-steps."""

    module: nn.Module
    config: Config
    ranks: Ranks
    device: torch.device
    optimizer: ZeroOptimizer
    lr_scheduler: Any
    scaler: LossScaler
    states: list[UnitState]
    stores: StoreAssignment
    stepper: Stepper
    unsharder: Unsharder | None
    read_cache: ReadCache
    accumulation: Accumulation
    global_steps: int
    skipped_steps: int
