"""DeepSpeed's surface on the reference engine: a DeepSpeed job runs on it unmodified.

``zerobench launch`` and ``python -m zerobench.compat`` put a package ``deepspeed`` of one-line re-exports first on the
path (:mod:`zerobench.compat.activation`). Nothing else makes it importable.
"""
