"""``deepspeed.accelerator.abstract_accelerator``, of zerobench."""

from zerobench.compat.accelerator.accelerator import Accelerator as DeepSpeedAccelerator
