"""Timers, profilers, memory and monitors."""
