"""``deepspeed.ops``, of zerobench."""

from deepspeed.ops import adagrad, adam, lamb, lion, transformer
