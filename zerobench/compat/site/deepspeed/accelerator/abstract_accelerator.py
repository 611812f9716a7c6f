"""``deepspeed.accelerator.abstract_accelerator``, of zerobench."""

from zerobench.compat.accelerator import Accelerator as DeepSpeedAccelerator
