"""``deepspeed.moe``, of zerobench."""

from deepspeed.moe import layer, utils
