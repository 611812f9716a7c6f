"""``deepspeed.launcher``, of zerobench."""
