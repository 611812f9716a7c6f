"""Real ranks: processes with a process group, started once and reused for many tasks."""

from zerobench.ranks.fault import RankFault
from zerobench.ranks.pool import Pending, Pool

__all__ = ["Pending", "Pool", "RankFault"]
