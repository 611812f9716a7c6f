"""``deepspeed.ops``, of zerobench."""

from deepspeed.ops import adagrad, adam, lion
