"""``deepspeed.git_version_info``, of zerobench."""

from zerobench.compat.activation import VERSION as version

git_hash = git_branch = "zerobench"
