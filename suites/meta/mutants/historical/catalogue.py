"""The catalogue: every historical bug, from all modules."""

from __future__ import annotations

from zerobench.subject import Subject
from zerobench.suites.meta.mutants.historical import (
    accumulation,
    clients,
    costs,
    ddp,
    earlier,
    loud,
    norms,
    overflow,
    reduction,
    updates,
    weights,
)
from zerobench.suites.meta.mutants.historical.bug import BUGS

#: The modules that note their mutants when they are imported.
MODULES = (accumulation, clients, costs, ddp, earlier, loud, norms, overflow, reduction, updates, weights)
#: The mutants, in the order of the modules.
HISTORICAL: list[type[Subject]] = list(BUGS)
