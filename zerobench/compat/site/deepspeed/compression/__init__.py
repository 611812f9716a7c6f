"""``deepspeed.compression``, of zerobench: DeepSpeed keeps it for its helper alone."""
