"""``deepspeed.checkpoint``, of zerobench."""

from deepspeed.checkpoint import utils
