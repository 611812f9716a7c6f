"""``deepspeed.compression``, of zerobench: DeepSpeed keeps it for its helper alone."""

from deepspeed.compression import helper as helper
