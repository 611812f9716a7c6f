"""``deepspeed.launcher.runner``, of zerobench."""

from zerobench.compat.launcher.runner import (
    encode_world_info,
    fetch_hostfile,
    main,
    parse_inclusion_exclusion,
    parse_resource_filter,
)

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"

if __name__ == "__main__":
    main()
