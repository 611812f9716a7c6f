"""Conform: ``zerobench conform`` runs the equivalence suite on several engines and writes one table.

``running`` runs pytest for each engine and keeps a line of JSON for each property; ``verdicts`` reads these lines;
``page`` renders the table.
"""
