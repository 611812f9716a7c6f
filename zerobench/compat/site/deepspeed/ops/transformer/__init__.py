"""``deepspeed.ops.transformer``, of zerobench."""

from zerobench.compat.refused import DeepSpeedTransformerLayer
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
