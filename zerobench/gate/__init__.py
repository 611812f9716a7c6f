"""Gate: whether a change made something worse, by three kinds of rules that a CI job can trust.

::

    zerobench run (grid)  ──>  cases  ──┐
                                        ├──>  rules: exact, bounded  ──┐
    the baseline, a committed file ─────┘                              ├──>  summary, exit code
    base and head, alternating (revisions)  ──>  timing: pairs  ───────┘

docs/reference/gate.md has the rules and their reasons.
"""
