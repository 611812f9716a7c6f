"""``python -m zerobench.suites.meta.power SESSION``: a session of measurements.

Ranks import the module that runs, so it imports nothing else in them.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from zerobench.suites.meta.power import alarms, conforming, measuring

    session, *arguments = sys.argv[1:] or [""]
    sessions = {"historical": measuring.main, "alarms": alarms.main, "released": conforming.main}
    if session not in sessions:
        sys.exit(f"expected one of {', '.join(sessions)}; got {session!r}")
    sessions[session](arguments)
