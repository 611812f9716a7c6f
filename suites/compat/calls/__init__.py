"""Calls of the engine and the optimizer, in training loops of every style."""
