"""Real ranks: processes with a process group, started here once or by a launcher, and reused for many tasks."""

from zerobench.ranks.failure import RankFault
from zerobench.ranks.launched import follow, open_pool
from zerobench.ranks.pool import Pending, Pool, preload

__all__ = ["Pending", "Pool", "RankFault", "follow", "open_pool", "preload"]
