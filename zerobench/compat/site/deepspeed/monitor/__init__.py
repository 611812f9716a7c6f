"""``deepspeed.monitor``, of zerobench."""
