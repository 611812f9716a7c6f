"""``deepspeed.moe``, of zerobench."""
