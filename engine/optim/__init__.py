"""The optimizer: its rules, its parameter groups and its step."""
