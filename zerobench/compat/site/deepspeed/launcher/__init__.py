"""``deepspeed.launcher``, of zerobench."""

from deepspeed.launcher import runner
