"""``deepspeed.pipe``, of zerobench."""

from zerobench.compat.refused import LayerSpec, PipelineModule, TiedLayerSpec
from zerobench.compat.unoffered import names_of

__getattr__ = names_of(__name__)
