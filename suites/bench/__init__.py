"""Benchmarks; none runs unless it is named."""
