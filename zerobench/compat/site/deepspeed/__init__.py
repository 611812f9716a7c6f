"""The stand-in for DeepSpeed: its names, on zerobench's reference engine."""

from deepspeed import (
    accelerator,
    checkpoint,
    comm,
    compression,
    constants,
    git_version_info,
    launcher,
    moe,
    monitor,
    ops,
    pipe,
    profiling,
    runtime,
    utils,
)
from deepspeed.accelerator import get_accelerator
from deepspeed.git_version_info import git_branch, git_hash, version
from deepspeed.runtime import zero
from zerobench.compat.activation import VERSION as __version__
from zerobench.compat.activation_checkpointing import checkpointing
from zerobench.compat.comm.comm import init_distributed
from zerobench.compat.config.deepspeed_config import DeepSpeedConfig
from zerobench.compat.engine.engine import DeepSpeedEngine
from zerobench.compat.engine.entry import add_config_arguments, initialize
from zerobench.compat.log import log_dist, logger
from zerobench.compat.optim.optimizers import DeepSpeedOptimizerCallable, DeepSpeedSchedulerCallable
from zerobench.compat.refused import InferenceEngine, PipelineEngine, PipelineModule, init_inference, tp_model_init
from zerobench.compat.runtime.loader import DeepSpeedDataLoader
from zerobench.compat.unoffered import add_names, find_modules
from zerobench.compat.zero import OnDevice
from zerobench.engine.errors import ConfigError as DeepSpeedConfigError

dist = comm
__git_hash__, __git_branch__ = git_hash, git_branch
__version_major__, __version_minor__, __version_patch__ = map(int, __version__.partition("+")[0].split("."))

find_modules()
add_names()
