"""``deepspeed.runtime.zero.tiling``, of zerobench."""

from zerobench.compat.zero import TiledLinear, TiledLinearReturnBias
