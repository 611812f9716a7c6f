"""Sharded parameters (ZeRO stage 3): units become whole before their use and give their memory back after it."""
