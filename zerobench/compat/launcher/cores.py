"""``--bind_cores_to_rank``: each rank of a node runs on its own share of the cores."""

from __future__ import annotations

import os

from zerobench.errors import UsageError

#: The variable by which the agent gives its ranks the cores of the node.
VARIABLE = "ZEROBENCH_BIND_CORES"


def parse_cores(text: str | None) -> list[int]:
    """The cores of ``1,3-5``; all that this process may use if there is no list.

    Raises:
        UsageError: the list has another form, or names a core twice or one that this process may not use.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if text is None:
        return allowed
    try:
        spans = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--bind_core_list {text!r} is not of the form 1,3-5") from None
    cores = [core for span in spans for core in range(span[0], span[-1] + 1)]
    if not set(cores) <= set(allowed) or len(set(cores)) < len(cores) or not cores:
        raise UsageError(f"--bind_core_list {text!r} must name cores among {allowed}, each once")
    return cores


def share_of_rank(cores: list[int], rank: int, ranks: int) -> list[int]:
    """The cores of one rank of the node.

    Raises:
        UsageError: there are fewer cores than ranks.
    """
    each = len(cores) // ranks
    if not each:
        raise UsageError(f"--bind_cores_to_rank needs a core for each of the {ranks} ranks, and there are {len(cores)}")
    return cores[rank * each : (rank + 1) * each]


def bind() -> None:
    """Bind this rank to its share, if the agent gives cores."""
    given = os.environ.get(VARIABLE)
    if given:
        rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        os.sched_setaffinity(0, share_of_rank([int(core) for core in given.split(",")], rank, ranks))
