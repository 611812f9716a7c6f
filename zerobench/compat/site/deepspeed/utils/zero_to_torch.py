"""``deepspeed.utils.zero_to_torch``, of zerobench."""

from zerobench.compat.checkpoint.zero_to_fp32 import main_of_dtype as main
