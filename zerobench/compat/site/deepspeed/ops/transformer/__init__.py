"""``deepspeed.ops.transformer``, of zerobench."""

from zerobench.compat.refused import DeepSpeedTransformerLayer
