"""``deepspeed.git_version_info``, of zerobench."""

from zerobench.compat.activation import VERSION as version
from zerobench.compat.unoffered import names_of

git_hash = git_branch = "zerobench"
installed_ops: dict[str, bool] = {}
torch_info: dict[str, str] = {}

__getattr__ = names_of(__name__)
