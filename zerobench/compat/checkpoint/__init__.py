"""Whole weights, written to files and read from checkpoints."""
