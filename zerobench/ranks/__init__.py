"""Real ranks: processes with a process group, started here once or by a launcher, and reused for many tasks."""

from zerobench.ranks.failure import RankFault
from zerobench.ranks.launch import Launch, threads_each
from zerobench.ranks.launched import follow, pool
from zerobench.ranks.pool import Pending, Pool

__all__ = ["Launch", "Pending", "Pool", "RankFault", "follow", "pool", "threads_each"]
