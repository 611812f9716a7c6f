"""Automatic mutants: the reference engine with one small edit in its source, and the suites that must notice it."""
