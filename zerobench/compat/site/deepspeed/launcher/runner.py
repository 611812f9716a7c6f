"""``deepspeed.launcher.runner``, of zerobench."""

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
