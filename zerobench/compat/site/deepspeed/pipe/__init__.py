"""``deepspeed.pipe``, of zerobench."""

from zerobench.compat.refused import LayerSpec, PipelineModule, TiedLayerSpec
