"""``deepspeed.git_version_info``, of zerobench."""

from zerobench.compat.activation import VERSION as version

git_hash = git_branch = "zerobench"
installed_ops: dict[str, bool] = {}
torch_info: dict[str, str] = {}
